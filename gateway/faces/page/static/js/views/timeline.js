// The timeline of a sandbox: one row for each command beside a time axis. Owns the scale, the rows, the overview strip and their keys. Rows are
// kept and updated in place, so that output keeps its place and selection while commands run.
import { h, s, add, replace, safe, span, clock, wall, bytes, count } from "../dom.js";
import { lines } from "../ansi.js";
import { glyph, icon, button, command as commandLine, copyable, empty, link, loading, problem, segmented, skeleton } from "../parts.js";
import { isOrdinary } from "../live.js";
import { cores, quantity } from "../quantities.js";

/** @typedef {import("../episode.js").Command} Command */
/** @typedef {import("../episode.js").Episode} Episode */
const FOLD = 12, EDGE = 5, IDLE_S = 8, IDLE_SHARE = 0.016, IDLE_APART = 0.008;
/** Longer lists draw only the rows in sight, and so many more on both sides. */
const ALL_ROWS = 120, MORE_ROWS = 20;
export const ADVICE = { workload: "The workload did this. Score this rollout.", infrastructure: "The infrastructure did this. Exclude this rollout from training.", caller: "The request caused this. Correct it before the next create." };
/** The share of the axis that one label takes. */
const label = () => (innerWidth < 720 ? 0.11 : innerWidth < 1280 ? 0.082 : 0.048);

/** How many elements at the beginning of `list` satisfy `is`; after them none does. @template T @param {T[]} list @param {(one: T) => boolean} is */
function count_(list, is) {
  let low = 0, high = list.length;
  while (low < high) { const mid = (low + high) >> 1; if (is(list[mid])) low = mid + 1; else high = mid; }
  return low;
}
/** Maps seconds to a share of the width. Idle stretches longer than IDLE_S shrink to a fixed share if `compress`. @param {any} ep @param {number[]} range @param {boolean} compress */
export function scale(ep, [from, to], compress) {
  /** @type {number[][]} */
  const idle = [];
  if (compress) {
    const busy = [...ep.commands.map((c) => [c.at, c.at + (c.dur ?? ep.length - c.at)]), ...ep.marks.map((m) => [m.at, m.at + m.dur])].sort((a, b) => a[0] - b[0]);
    let end = from;
    for (const [a, b] of [...busy, [to, to]]) {
      if (a - end > IDLE_S && a <= to) idle.push([end + 0.6, a - 0.6]);
      end = Math.max(end, b);
    }
  }
  const lost = idle.reduce((sum, [a, b]) => sum + b - a, 0), real = Math.max(to - from - lost, 0.001), each = Math.min(IDLE_SHARE, 0.5 / Math.max(idle.length, 1)), share = 1 - idle.length * each;
  // Idle time before each idle stretch: an episode may have thousands of them.
  const sum = [0];
  for (const [a, b] of idle) sum.push(sum[sum.length - 1] + b - a);
  const x = (t) => {
    const k = count_(idle, ([, b]) => b <= t), gap = idle[k], part = gap && t > gap[0] ? t - gap[0] : 0;
    return (Math.max(t, from) - from - sum[k] - part) / real * share + each * (k + (part ? part / (gap[1] - gap[0]) : 0));
  };
  const step = [0.1, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800].find((n) => real / n <= 8) || 3600;
  /** @type {number[]} */
  const ticks = [];
  const mids = idle.map(([a, b]) => (x(a) + x(b)) / 2);
  const room = (t) => { const at = x(t), next = mids[count_(mids, (mid) => mid < at)] ?? 2; return 1 - at > label() && ticks.every((o) => Math.abs(x(o) - at) > label() * 1.2) && next > at + label(); };
  if (!compress) ticks.push(from);
  for (const [, b] of idle) if (room(b)) ticks.push(b);
  for (let t = Math.ceil(from / step) * step; t <= to && ticks.length < 40; t += step) { const gap = idle[count_(idle, ([, b]) => b <= t)]; if (!(gap && t > gap[0]) && room(t)) ticks.push(t); }
  /** The time at a share of the width: the inverse of x. */
  const time = (part) => {
    let [low, high] = [from, to];
    for (let i = 0; i < 24; i += 1) { const half = (low + high) / 2; if (x(half) < part) low = half; else high = half; }
    return low;
  };
  let last = -1;
  const drawn = idle.filter((_, i) => { const fits = mids[i] - last > IDLE_APART; if (fits) last = mids[i]; return fits; });
  return { x, time, idle: drawn, ticks, left: (t) => `${(x(t) * 100).toFixed(3)}%`, width: (a, b) => `${((x(b) - x(a)) * 100).toFixed(3)}%` };
}
/** @param {Command} c @param {boolean} over whether the sandbox has ended @returns {"running"|"unknown"|"ok"|"failed"} */
export const outcome = (c, over = false) => (c.running ? (over ? "unknown" : "running") : c.exit === 0 ? "ok" : c.exit === null ? "unknown" : "failed");

/** @param {Command} c @param {string} kind */
function exitCell(c, kind) {
  if (kind === "running") return h("span.exit.run", "running");
  if (kind === "unknown") return h("span.exit.f-infrastructure", { title: "The outcome cannot be known" }, glyph("infrastructure"), "unknown");
  return h("span", { cls: `exit ${kind === "failed" ? "f-workload" : "zero"}`, title: c.signal || (c.reason === "timeout" ? "ended by its time limit" : "") }, kind === "failed" ? glyph("workload") : null, String(c.exit));
}
/** One stream of a command: folded in the middle, colours kept. */
function stream(name, text, c, find, gaps) {
  const all = lines(text), pre = h("pre.out", { tabindex: 0, "aria-label": `${name} of command ${c.n}` });
  const wrap = button("Wrap", { kind: "small", pressed: false, onclick: () => wrap.setAttribute("aria-pressed", String(pre.classList.toggle("wrap"))) });
  const hits = find.length > 1 ? all.filter((line) => line.textContent.toLowerCase().includes(find)) : [];
  hits.forEach((line) => line.classList.add("hit"));
  const dropped = gaps.reduce((sum, gap) => sum + gap.bytes, 0);
  if (dropped) add(pre, h("span.dropped", glyph("leaving"), `${bytes(dropped)} dropped here (${count(dropped)} bytes): the newest output is kept`));
  if (hits.length && all.length > FOLD) add(pre, [hits.slice(0, FOLD), h("button.fold", { type: "button", onclick: () => replace(pre, all) }, icon("down"), `${count(hits.length)} of ${count(all.length)} lines match. Show all lines`)]);
  else if (all.length <= FOLD) add(pre, all);
  else add(pre, [all.slice(0, EDGE), h("button.fold", { type: "button", onclick: () => replace(pre, all) }, icon("down"), `Show ${count(all.length - 2 * EDGE)} hidden lines`), all.slice(-EDGE)]);
  const written = name === "stdout" ? c.outBytes : c.errBytes;
  return h("section", { cls: `stream ${name}` }, h("header", h("b", name), h("span.note", `${count(all.length)} ${all.length === 1 ? "line" : "lines"} · ${bytes(Math.max(written, 0))}`), h("span.grow"), wrap, copyable(text)), pre);
}
/** @param {Command} c */
function detail(c, side, find, kind, recorded) {
  const o = c.output, parts = o ? [o.out ? stream("stdout", o.out, c, find, o.gaps.filter((gap) => gap.stream !== 2)) : null, o.err ? stream("stderr", o.err, c, find, o.gaps.filter((gap) => gap.stream === 2)) : null].filter(Boolean) : [];
  const written = c.outBytes + c.errBytes;
  const notes = [
    c.reason === "timeout" ? h("p.why.f-workload", glyph("workload"), h("b", "timeout"), "Ended by its own time limit. Everything it started was ended too.") : null,
    c.reason && c.reason !== "timeout" ? h("p.why.f-workload", glyph("workload"), h("b", safe(c.reason)), "As the sandbox reports it.") : null,
    c.signal && !c.reason ? h("p.why.f-workload", glyph("workload"), h("b", safe(c.signal)), c.exit !== null && c.exit > 128 ? `The command ended by a signal: exit code ${c.exit} is 128 + ${c.exit - 128}.` : "The command ended by a signal.") : null,
    kind === "unknown" ? h("p.why.f-infrastructure", glyph("infrastructure"), h("b", "outcome unknown"), "The sandbox ended while the command ran. Its outcome cannot be known, so no exit code is shown.") : null,
  ];
  const none = !o || o.state === "reading" ? "Reading its output." : o.state === "failed" ? (written ? `Its output is not kept any more (${o.error}); it wrote ${bytes(written)}.` : "No output.") : "No output.";
  return h("div.detail-in", { role: "gridcell" }, notes, c.text.includes("\n") ? h("pre.script", safe(c.text)) : null, parts.length ? h("div", { cls: side && parts.length > 1 ? "streams side" : "streams" }, parts) : h("p.note.none", none),
    h("p.meta", "id ", h("code", safe(c.id)), ` · in ${c.where}${c.shell ? ` (${c.shell})` : ""} · started ${wall(c.began)}`, c.cpu !== null ? ` · CPU ${span(c.cpu)}` : "", recorded ? [" · ", link("Replay", `#/recordings/${encodeURIComponent(recorded)}/${encodeURIComponent(c.id)}`)] : null));
}
function bar(c, sc, ep, kind) {
  const end = c.dur === null ? ep.length : c.at + c.dur, after = sc.x(end) < 0.8;
  const node = h("div", { cls: `bar b-${kind}`, style: { left: sc.left(c.at), width: sc.width(c.at, end) }, title: `${clock(c.at, true)} to ${clock(end, true)}` });
  const word = kind === "running" ? "running" : c.reason === "timeout" ? "time limit" : c.signal || (kind === "unknown" ? "outcome unknown" : "");
  return h("div.lane", node, word ? h("span", { cls: `bar-label ${after ? "" : "before"}`, style: after ? { left: `${sc.x(end) * 100}%` } : { right: `${100 - sc.x(c.at) * 100}%` } }, safe(word)) : null);
}
/** CPU and memory as shares of the limits, in equal steps over the whole life; null before there are samples. @param {Episode} ep */
function series(ep) {
  const { samples } = ep, one = ep.sandbox, steps = 120;
  if (samples.length < 2 || !one) return { cpu: null, mem: null };
  const most = { cpu: cores(one.cpu) || 1, memory: quantity(one.memory) || 1 }, { length } = ep;
  const at = (name) => { let k = 0; return Array.from({ length: steps }, (_, i) => { const t = i / (steps - 1) * length; while (k + 1 < samples.length && samples[k + 1].at <= t) k += 1; return samples[k].at > t + length / steps ? 0 : Math.min(samples[k][name] / most[name], 1); }); };
  return { cpu: at("cpu"), mem: at("memory") };
}
/** The sign on the axis where idle time is left out. */
const breakMark = () => s("svg", { viewBox: "0 0 8 12", width: 8, height: 12, "aria-hidden": "true" }, s("path", { d: "M1 11L4 1M4.5 11L7.5 1", stroke: "currentColor", fill: "none" }));

function strip(ep, view, onview, kindOf) {
  const W = 1000, H = 44, x = (t) => t / ep.length * W, curve = (v, top, tall) => v.map((p, i) => `${i ? "L" : "M"}${(i / (v.length - 1) * W).toFixed(1)} ${(top + tall - p * tall).toFixed(1)}`).join("");
  const { cpu, mem } = ep.use();
  const svg = s("svg", { viewBox: `0 0 ${W} ${H}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    cpu ? s("path", { class: "strip-cpu", d: `${curve(cpu, 2, 28)}L${W} 30L0 30Z` }) : null, mem ? s("path", { class: "strip-mem", d: curve(mem, 2, 28), "vector-effect": "non-scaling-stroke" }) : null,
    ["ok", "failed", "unknown", "running"].map((kind) => s("path", { class: `strip-cmd b-${kind}`, d: ep.commands.filter((c) => kindOf(c) === kind).map((c) => `M${x(c.at).toFixed(1)} 34h${Math.max(x(c.dur ?? ep.length - c.at), 2.5).toFixed(1)}v7H${x(c.at).toFixed(1)}z`).join("") })),
    ep.marks.map((m) => s("rect", { class: `strip-mark ${m.kind}`, x: x(m.at), width: Math.max(x(m.dur), 1.2), y: 0, height: H })));
  const win = h("div.brush", { style: { left: `${view[0] / ep.length * 100}%`, width: `${(view[1] - view[0]) / ep.length * 100}%` } });
  const box = h("div.strip-plot", svg, view[0] > 0 || view[1] < ep.length ? win : null);
  /** @type {number|null} */
  let from = null;
  const at = (e) => { const r = box.getBoundingClientRect(); return Math.min(Math.max((e.clientX - r.left) / r.width, 0), 1) * ep.length; };
  box.addEventListener("pointerdown", (e) => { from = at(e); box.setPointerCapture(e.pointerId); box.append(win); });
  box.addEventListener("pointermove", (e) => { if (from === null) return; const t = at(e); win.style.left = `${Math.min(from, t) / ep.length * 100}%`; win.style.width = `${Math.abs(t - from) / ep.length * 100}%`; });
  box.addEventListener("pointerup", (e) => { if (from === null) return; const t = at(e); onview(Math.abs(t - from) < ep.length / 80 ? null : [Math.min(from, t), Math.max(from, t)]); from = null; });
  return h("div.strip", { role: "img", "aria-label": "Whole life of the sandbox: CPU, memory, commands and reconnects. Drag to choose a part." },
    h("div.strip-key", cpu ? h("span.k-cpu", h("i"), "CPU") : null, mem ? h("span.k-mem", h("i"), "memory") : null, h("span.k-cmd", h("i"), "commands"), h("span.note", `commands ran ${span(ep.commands.reduce((sum, c) => sum + (c.dur ?? ep.length - c.at), 0))} of ${span(ep.length)}`), h("span.note.lg", "drag to zoom")), box);
}
/** Puts `nodes` into `parent` in this order, without moving those that stand right. */
function reconcile(parent, nodes) {
  const wanted = new Set(nodes);
  for (const child of [...parent.childNodes]) if (!wanted.has(child)) child.remove();
  nodes.forEach((node, i) => { if (parent.childNodes[i] !== node) parent.insertBefore(node, parent.childNodes[i] ?? null); });
}

/**
 * @param {Episode} episode
 * @param {{extend: () => void, go: (to: string) => void}} acts
 * @param {AbortSignal} signal
 */
export function timeline(episode, acts, signal) {
  const ui = { view: /** @type {number[]|null} */ (null), compress: true, side: false, only: "all", text: "", open: new Set(), at: 0, touched: false };
  const root = h("div.tl"), holder = h("div.tl-holder"), body = h("div.tl-body"), stripBox = h("div"), endBox = h("div"), toolBox = h("div.tools"), grid = h("div.tl-grid", { "aria-hidden": "true" }), axis = h("span.c-lane.axis", { role: "columnheader", "aria-label": "Time since ready" });
  const search = /** @type {HTMLInputElement} */ (h("input.field", { type: "search", placeholder: "Find in commands and output", "aria-label": "Find in commands and output" }));
  search.addEventListener("input", () => { ui.text = search.value.toLowerCase(); draw(); });
  const find = h("label.find", icon("search"), search, h("kbd", "/"));
  const head = h("div.tl-row.tl-head", { role: "row" }, h("span.c-caret", { role: "columnheader" }, h("span.hide", "Output")), h("span.c-n", { role: "columnheader" }, "#"), h("span.c-text", { role: "columnheader" }, "Command"), h("span.c-where", { role: "columnheader" }, "In"), h("span.c-exit", { role: "columnheader" }, "Exit"), h("span.c-dur", { role: "columnheader" }, "Duration"), axis);
  const table = h("div.tl-table", { role: "treegrid", "aria-label": "Commands" }, head, body);
  const hair = h("i.hair", { hidden: true }), readout = h("span.readout", { hidden: true });
  /** @type {Map<string, {row: HTMLElement, detail: HTMLElement, sign: string, shown: any}>} */
  const rows = new Map();
  const over = () => episode.sandbox?.status === "ended" || episode.sandbox?.status === "failed";
  const kindOf = (c) => outcome(c, over());
  const isBad = (c) => ["failed", "unknown"].includes(kindOf(c));
  const model = () => ({ commands: episode.commands, marks: episode.marks, length: episode.length, use: () => series(episode) });
  /** @param {Command} c @param {number[]} range */
  const inView = (c, [from, to]) => c.at <= to && (c.dur === null || c.at + c.dur >= from);
  const view = (ep) => ui.view ?? [0, ep.length];
  const shown = (ep) => ep.commands.filter((c) => inView(c, view(ep)) && (ui.only === "all" || (ui.only === "failed" ? isBad(c) : (c.dur ?? 99) >= 1)) && (!ui.text || (c.text + (c.output?.out ?? "") + (c.output?.err ?? "")).toLowerCase().includes(ui.text)));
  const focus = () => /** @type {HTMLElement|null} */ (root.querySelector(`[data-i="${ui.at}"]`))?.focus();
  let rowHeight = 30;
  /** @type {Map<string, number>} heights of what is open */
  const heights = new Map();
  function toggle(c, open = !ui.open.has(c.id)) {
    if (open) { ui.open.add(c.id); episode.follow(c); } else ui.open.delete(c.id);
    draw(); focus();
  }
  function zoom(f) {
    const ep = model(), [a, b] = view(ep), mid = (a + b) / 2, half = (b - a) * f / 2, next = [Math.max(0, mid - half), Math.min(ep.length, mid + half)];
    ui.view = next[0] === 0 && next[1] === ep.length ? null : next;
    ui.at = 0;
    draw(); focus();
  }
  const fit = () => { ui.view = null; draw(); };
  function next() {
    const list = shown(model()), i = list.findIndex((c, k) => k > ui.at && isBad(c));
    ui.at = i < 0 ? Math.max(list.findIndex(isBad), 0) : i;
    if (list[ui.at] && isBad(list[ui.at])) toggle(list[ui.at], true);
  }
  let toolSign = "";
  function tools(ep) {
    const bad = ep.commands.filter(isBad).length, long = ep.commands.filter((c) => (c.dur ?? 99) >= 1).length, sign = JSON.stringify([ep.commands.length, bad, long, ui.only, ui.compress, ui.side]);
    if (sign === toolSign) return;
    toolSign = sign;
    const held = toolBox.contains(document.activeElement) && document.activeElement !== search ? [...toolBox.querySelectorAll("button")].indexOf(/** @type {any} */ (document.activeElement)) : -1;
    const rest = [segmented("Which commands", [["all", "All", ep.commands.length], ["failed", "Failed", bad], ["long", "1 s or longer", long]], ui.only, (v) => { ui.only = v; draw(); }),
      button("Next failure", { key: "f", onclick: next }), h("span.grow"),
      button("Compress idle", { key: "i", pressed: ui.compress, onclick: () => { ui.compress = !ui.compress; draw(); } }), h("span.wide", button("Side by side", { pressed: ui.side, onclick: () => { ui.side = !ui.side; draw(); } })),
      h("div.seg", { role: "group", "aria-label": "Zoom" }, h("button", { type: "button", onclick: () => zoom(1.6), "aria-label": "Zoom out" }, icon("minus")), h("button", { type: "button", onclick: fit }, "Fit"), h("button", { type: "button", onclick: () => zoom(0.6), "aria-label": "Zoom in" }, icon("plus")))];
    if (find.parentElement !== toolBox) replace(toolBox, find);
    while (toolBox.childNodes.length > 1) toolBox.lastChild?.remove();
    add(toolBox, rest);
    if (held >= 0) toolBox.querySelectorAll("button")[held]?.focus();
  }
  /** @param {Command} c */
  const isOpen = (c) => ui.open.has(c.id) || (ui.text.length > 1 && ((c.output?.out ?? "") + (c.output?.err ?? "")).toLowerCase().includes(ui.text));
  /** The nodes of one command. The detail is drawn again only when something of it changed. */
  function nodes(c, i, sc, ep) {
    const kind = kindOf(c), o = c.output, open = isOpen(c);
    const sign = JSON.stringify([c.id, i, c.n, kind, c.exit, open, c.text, i === ui.at]);
    let kept = rows.get(c.id);
    if (!kept) { kept = { row: h("div"), detail: h("div.detail", { role: "row" }), sign: "", shown: "" }; rows.set(c.id, kept); }
    if (kept.sign !== sign) {
      const row = h("div", { cls: `tl-row r-${kind}${open ? " open" : ""}`, role: "row", tabindex: i === ui.at ? 0 : -1, "data-i": i, "aria-rowindex": i + 2, "aria-level": 1, "aria-expanded": String(open), onclick: () => { ui.at = i; const list = shown(model()); if (list[i]) toggle(list[i]); }, onfocus: () => { ui.at = i; ui.touched = true; } },
        h("span.c-caret", { role: "gridcell" }, icon("caret")), h("span.c-n", { role: "gridcell" }, c.n), h("span.c-text", { role: "gridcell" }, safe(c.text, "code")), h("span.c-where", { role: "gridcell", title: c.shell ?? "" }, safe(c.where)),
        h("span.c-exit", { role: "gridcell" }, exitCell(c, kind)), h("span.c-dur", { role: "gridcell" }), h("span.c-lane", { role: "gridcell" }));
      if (kept.row.isConnected) kept.row.replaceWith(row);
      kept.row = row;
      kept.sign = sign;
    }
    const dur = /** @type {HTMLElement} */ (kept.row.querySelector(".c-dur")), lane = /** @type {HTMLElement} */ (kept.row.querySelector(".c-lane"));
    dur.textContent = span(c.dur ?? Math.max(ep.length - c.at, 0));
    replace(lane, bar(c, sc, ep, kind));
    if (open) {
      const content = JSON.stringify([o?.state, o?.out.length, o?.err.length, o?.gaps.length, ui.side, ui.text, kind, c.exit, c.reason, c.outBytes, c.errBytes]);
      if (content !== kept.shown) {
        kept.shown = content;
        const places = [...kept.detail.querySelectorAll("pre.out")].map((pre) => pre.scrollTop);
        replace(kept.detail, detail(c, ui.side, ui.text, kind, episode.recordingId || episode.sandbox?.record?.recording));
        kept.detail.querySelectorAll("pre.out").forEach((pre, k) => { pre.scrollTop = places[k] ?? 0; });
      }
    }
    return open ? [kept.row, kept.detail] : [kept.row];
  }
  /** Says how many commands lie outside the chosen part. */
  function beyond(where, n) { return n ? h("p.beyond", { role: "row" }, h("span", { role: "gridcell" }, `${n} ${n === 1 ? "command" : "commands"} ${where} this part`), button("Fit", { kind: "small", key: "0", onclick: fit })) : null; }
  function markRow(m, sc) {
    return h("div.tl-mark", { cls: m.kind, role: "row" }, h("span.tl-mark-text", { role: "gridcell" }, glyph(m.kind === "reconnect" ? "leaving" : "pending"), h("b", m.text), h("span.note", m.detail)),
      h("span.lane", { role: "gridcell" }, h("i", { style: { left: sc.left(m.at), width: sc.width(m.at, m.at + m.dur) } })));
  }
  /** The rows to draw, and the heights of those between that are left out. The row with the tab stop is always drawn. @param {{at: number, i: number, mark: any}[]} all @param {Command[]} list @returns {any[]} */
  function inSight(all, list) {
    if (all.length <= ALL_ROWS) return all;
    const top = -body.getBoundingClientRect().top - MORE_ROWS * rowHeight, bottom = top + innerHeight + 2 * MORE_ROWS * rowHeight;
    /** @type {any[]} */
    const drawn = [];
    let y = 0, gap = 0;
    for (const item of all) {
      const c = item.mark ? null : list[item.i], tall = rowHeight + (c && isOpen(c) ? heights.get(c.id) ?? 160 : 0);
      if ((y + tall >= top && y <= bottom) || item.i === ui.at) { if (gap) drawn.push({ gap }); gap = 0; drawn.push(item); } else gap += tall;
      y += tall;
    }
    if (gap) drawn.push({ gap });
    return drawn;
  }
  /** Learns how tall rows are, which decides what is in sight. */
  function measure() {
    const first = /** @type {HTMLElement|null} */ (body.querySelector(".tl-row:not(.open)"));
    if (first) rowHeight = first.offsetHeight || rowHeight;
    for (const [id, kept] of rows) if (kept.detail.isConnected) heights.set(id, kept.detail.offsetHeight);
  }
  let scrolled = 0;
  addEventListener("scroll", () => { if (episode.commands.length > ALL_ROWS && !scrolled) scrolled = requestAnimationFrame(() => { scrolled = 0; if (!signal.aborted && drawn && frameOf === "rows") drawRows(); }); }, { signal, passive: true });
  let frameOf = "";
  function frame() {
    const one = episode.sandbox, name = episode.commands.length ? "rows" : episode.state === "loading" ? "loading" : one?.status === "pending" ? "pending" : over() ? "over" : episode.state === "failed" ? "failed" : "none";
    if (name !== frameOf) {
      frameOf = name;
      const contents = {
        rows: () => [toolBox, stripBox, table, endBox], loading: () => [loading("commands", skeleton(8))], pending: () => [empty("Not ready yet", "It waits for its image. Its commands appear here as soon as it is ready.")], over: () => [endBox],
        failed: () => [episode.problem ? problem(episode.problem, () => episode.read(), "The commands could not be read") : null, endBox], none: () => [empty("No command yet", "Commands appear here as a client runs them.", commandLine(`holdfast exec ${episode.id} ls -la`)), endBox],
      };
      replace(holder, contents[name]());
    }
    return name;
  }
  /** What was drawn last. @type {any} */
  let drawn = null;
  /** Draws the rows in sight: all that changes while the page scrolls. */
  function drawRows() {
    const { ep, sc, list, items, before, after } = drawn;
    const nodesOf = (item) => (item.gap ? [h("div.tl-gap", { "aria-hidden": "true", style: { height: `${item.gap}px` } })] : item.mark ? [markRow(item.mark, sc)] : nodes(list[item.i], item.i, sc, ep));
    const none = list.length ? null : h("p.none.pad", { role: "row" }, h("span", { role: "gridcell" }, "No command matches. ", button("Show all", { kind: "quiet", onclick: () => { ui.only = "all"; ui.text = search.value = ""; draw(); } })));
    reconcile(body, [grid, beyond("before", before), ...inSight(items, list).flatMap(nodesOf), none, beyond("after", after)].filter(Boolean));
    measure();
  }
  function draw() {
    const atEnd = endBox.isConnected && endBox.getBoundingClientRect().bottom <= innerHeight + 60 && scrollY > 0;
    replace(endBox, ending(episode, acts));
    if (frame() !== "rows") return;
    const ep = model(), [from, to] = view(ep), sc = scale(ep, [from, to], ui.compress), list = shown(ep), focused = body.contains(document.activeElement) && /** @type {Element} */ (document.activeElement).matches(".tl-row");
    ui.at = Math.min(ui.at, Math.max(list.length - 1, 0));
    tools(ep);
    replace(stripBox, strip(ep, [from, to], (v) => { ui.view = v; draw(); }, kindOf));
    replace(grid, sc.ticks.map((t) => h("i.tick", { style: { left: sc.left(t) } })), sc.idle.map(([a, b]) => h("i.idle", { style: { left: sc.left(a), width: sc.width(a, b) } })), ep.marks.filter((m) => m.kind === "reconnect").map((m) => h("i.cut", { style: { left: sc.left(m.at), width: sc.width(m.at, m.at + m.dur) } })), hair);
    replace(axis, sc.ticks.map((t) => h("span", { style: { left: sc.left(t) } }, clock(t, to - from < 8 && t % 1 > 0))), sc.idle.map(([a, b]) => h("span.idle-label", { style: { left: `${(sc.x(a) + sc.x(b)) * 50}%` }, title: `${span(b - a)} without a command` }, breakMark())), readout);
    const marks = ui.only === "all" && !ui.text ? ep.marks.filter((m) => m.at >= from && m.at <= to) : [];
    drawn = { ep, sc, list, items: [...list.map((c, i) => ({ at: c.at, i, mark: null })), ...marks.map((mark) => ({ at: mark.at, i: -1, mark }))].sort((a, b) => a.at - b.at), before: ep.commands.filter((c) => c.dur !== null && c.at + c.dur < from).length, after: ep.commands.filter((c) => c.at > to).length };
    table.setAttribute("aria-rowcount", String(list.length + 1));
    table.classList.toggle("many", ep.commands.length > 99);
    drawRows();
    if (focused && !body.contains(document.activeElement)) focus();
    const ids = new Set(ep.commands.map((c) => c.id));
    for (const id of rows.keys()) if (!ids.has(id)) rows.delete(id);
    if (atEnd) scrollTo(0, document.documentElement.scrollHeight);
  }
  body.addEventListener("pointermove", (e) => {
    const box = grid.getBoundingClientRect(), share = (e.clientX - box.left) / box.width;
    hair.hidden = readout.hidden = e.pointerType === "touch" || share < 0 || share > 1 || !!(/** @type {Element} */ (e.target)).closest(".detail");
    hair.style.left = readout.style.left = `${share * 100}%`;
    if (drawn) readout.textContent = clock(drawn.sc.time(share), true);
  });
  body.addEventListener("pointerleave", () => { hair.hidden = readout.hidden = true; });
  root.addEventListener("keydown", (e) => {
    const target = /** @type {Element} */ (e.target);
    if (target.matches("input") || e.metaKey || e.ctrlKey || e.altKey) return;
    const list = shown(model()), move = (n) => { ui.at = Math.min(Math.max(ui.at + n, 0), list.length - 1); draw(); focus(); };
    const act = { ArrowDown: () => move(1), j: () => move(1), ArrowUp: () => move(-1), k: () => move(-1), Home: () => move(-9999), End: () => move(9999), Enter: () => toggle(list[ui.at]), " ": () => toggle(list[ui.at]), ArrowRight: () => toggle(list[ui.at], true), ArrowLeft: () => toggle(list[ui.at], false), f: next, i: () => { ui.compress = !ui.compress; draw(); focus(); }, "+": () => zoom(0.6), "-": () => zoom(1.6), 0: () => { fit(); focus(); } }[e.key];
    if (act && list[ui.at] && (target.matches(".tl-row") || !target.closest("button, pre, a"))) { e.preventDefault(); act(); }
  });
  episode.addEventListener("change", () => { first(); draw(); }, { signal });
  episode.addEventListener("output", draw, { signal });
  const ticking = setInterval(() => { if (!over() && (ui.view === null) && document.visibilityState === "visible") draw(); }, 1000);
  signal.addEventListener("abort", () => clearInterval(ticking));
  let opened = false;
  /** The first failure is open at first, else the last command. */
  function first() {
    if (opened || !episode.commands.length || over()) return;
    opened = true;
    const chosen = episode.commands.find((c) => !c.running && isBad(c)) ?? episode.commands[episode.commands.length - 1];
    ui.open.add(chosen.id);
    episode.follow(chosen);
  }
  first();
  draw();
  return add(root, holder);
}
/** The last row: why the sandbox ended and what that means, or that it lives and until when. @param {Episode} episode */
export function ending(episode, acts) {
  const one = episode.sandbox;
  if (!one) return null;
  const running = episode.commands.filter((c) => c.running), now = Date.now() / 1000;
  if (one.status === "ended" || one.status === "failed") {
    const ordinary = isOrdinary(one), never = one.ready === null && one.created !== null, message = one.message || one.reason;
    return h("div", { cls: `end ${ordinary ? "ordinary" : `f-${one.fault}`}` }, glyph(ordinary ? "ended" : one.fault), h("div", h("b", safe(`${never ? "Never became ready" : "Ended"}: ${one.reason}`)), ordinary ? null : h("span.tag", `fault: ${one.fault}`), h("p", safe(message ? `${message[0].toUpperCase()}${message.slice(1)}.` : "")), h("p.advice", ordinary ? "The caller asked for this end. Nothing went wrong." : ADVICE[one.fault] ?? "")),
      h("div.actions", button("Copy cause", { glyph: "copy", onclick: () => navigator.clipboard?.writeText(`${one.id}: ${one.reason} (fault: ${one.fault}) ${one.message}`) })));
  }
  const leaving = one.status === "leaving", left = one.expires === null ? "It has no limit of its lifetime." : `The sandbox ends at ${wall(one.expires)} (in ${span(Math.max(one.expires - now, 0))})${leaving ? ", and this cannot be changed." : " unless its lifetime is extended."}`;
  return h("div", { cls: `end ${leaving ? "f-infrastructure" : "live"}` }, glyph(leaving ? "leaving" : one.status === "pending" ? "pending" : one.status === "paused" ? "paused" : "ready"), h("div", h("b", leaving ? `Leaving: ${one.reason}` : one.status === "pending" ? "Pending" : one.status === "paused" ? "Paused" : "Ready"), leaving ? h("span.tag", `fault: ${one.fault}`) : null, h("p", `${running.length === 1 ? `Command ${running[0].n} is running. ` : running.length ? `${running.length} commands are running. ` : ""}${left}`)),
    h("div.actions", leaving || one.expires === null ? null : button("Extend by 1 h", { onclick: acts.extend })));
}
