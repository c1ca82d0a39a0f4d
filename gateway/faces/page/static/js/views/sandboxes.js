// The list of sandboxes: filter bar, state counts, a virtual table, selection and bulk actions. Rows are updated in place while the pointer or
// the focus is in the list; sandboxes that are new then wait behind a button.
import { Problem, call, path } from "../api.js";
import { h, add, replace, safe, age, span, bytes, count, shortImage } from "../dom.js";
import { save } from "../downloads.js";
import { spark } from "../charts.js";
import { glyph, icon, state, fault, button, command, dialog, empty, loading, problem, skeleton, toast } from "../parts.js";
import { isOrdinary, live } from "../live.js";
import { cores, quantity } from "../quantities.js";
import { create } from "./create.js";

/** @typedef {import("../live.js").Sandbox} Sandbox */
/** @typedef {{key: string, value: string, word: string, not?: boolean}} Token */
const KEYS = { state: "status", owner: "owner", image: "image", group: "group", fault: "fault", cause: "reason", label: "labels" };
const HINTS = { state: "ready, pending, leaving, paused, failed, ended", owner: "whose it is", image: "part of its name", group: "its group", fault: "infrastructure, workload, caller", cause: "why it ended", label: "name=value" };
const STATES = ["ready", "pending", "leaving", "paused", "failed", "ended"];
const COLUMNS = [["status", "State", "c-state"], ["id", "Sandbox", "c-id"], ["image", "Image", "c-image"], ["owner", "Owner", "c-owner"], ["group", "Group", "c-group"], ["created", "Age", "c-age num"], ["ready", "Ready in", "c-ready num"], ["cpu", "CPU", "c-cpu"], ["memory", "Memory", "c-mem"], ["expires", "Ends in", "c-exp num"], ["reason", "Last command, or cause of end", "c-last"]];
const AT_ONCE = 8;

/** @param {string} text @returns {Token[]} */
export function parse(text) {
  return text.trim().split(/\s+/).filter(Boolean).map((word) => { const m = /^(-?)([a-z]+):(.+)$/.exec(word); return m && KEYS[m[2]] ? { not: m[1] === "-", key: m[2], value: m[3], word } : { key: "", value: word, word }; });
}
/** @param {Sandbox} one @param {Token[]} tokens */
export function matches(one, tokens) {
  return tokens.every((token) => {
    const wanted = token.value.toLowerCase(), found = String(one[KEYS[token.key]] ?? "").toLowerCase();
    let hit = found.includes(wanted);
    if (!token.key) hit = `${one.id} ${one.image} ${one.command?.line ?? ""} ${one.message}`.toLowerCase().includes(wanted);
    else if (token.key === "state" || token.key === "fault") hit = found === wanted;
    else if (token.key === "label") hit = Object.entries(one.labels).some(([name, value]) => `${name}=${value}`.toLowerCase().includes(wanted));
    return token.not ? !hit : hit;
  });
}
const now = () => Date.now() / 1000;
const dash = () => h("span.dash", "–");
/** Runs `act` for each id, some at a time. @param {string[]} ids @param {(id: string) => Promise<any>} act @returns {Promise<number>} how many failed */
async function each(ids, act) {
  const queue = [...ids];
  let failed = 0;
  await Promise.all(Array.from({ length: AT_ONCE }, async () => { for (let id = queue.pop(); id !== undefined; id = queue.pop()) { try { await act(id); } catch { failed += 1; } } }));
  return failed;
}

export const sandboxes = {
  title: "Sandboxes",
  /** @param {HTMLElement} root @param {import("../main.js").Context} context */
  mount(root, { at, who, signal, go, keep }) {
    const ui = { sort: "created", down: true, picked: new Set(), at: 0, anchor: 0 };
    let tokens = parse(at.query);
    /** @type {Sandbox[]} */
    let list = [];
    let known = new Set(), fresh = 0, drawn = "";
    const phone = matchMedia("(max-width: 719px)"), rowHeight = () => (phone.matches ? 56 : 30);
    const body = h("div.v-rows", { role: "rowgroup" }), viewport = h("div.v-port"), chips = h("span.chips"), bulk = h("div.bulk-slot"), facets = h("div.facets", { role: "group", "aria-label": "States" }), summary = h("span.note"), menu = h("ul.suggest", { role: "listbox", id: "suggest", "aria-label": "Suggestions", hidden: true }), more = h("span");
    const input = /** @type {HTMLInputElement} */ (h("input", { id: "filter", type: "text", autocomplete: "off", spellcheck: "false", role: "combobox", "aria-expanded": "false", "aria-label": "Filter sandboxes", "aria-controls": "suggest", placeholder: "Filter: state:ready image:python fault:infrastructure, or any text" }));
    const head = h("div.v-row.v-head", { role: "row" }), table = h("div.v-table", { role: "grid", "aria-multiselectable": "true", "aria-label": "Sandboxes" }, viewport), holder = h("div.v-holder");

    const tally = (key) => live.list_().reduce((all, one) => ({ ...all, [one[key]]: (all[one[key]] || 0) + 1 }), /** @type {Record<string, number>} */ ({}));
    function setTokens(next) {
      tokens = next;
      ui.at = 0;
      history.replaceState(null, "", `#/sandboxes${next.length ? `?q=${encodeURIComponent(next.map((t) => t.word).join(" "))}` : ""}`);
      refresh();
    }
    function suggest() {
      const word = input.value.split(/\s+/).pop() ?? "", m = /^([a-z]+):(.*)$/.exec(word);
      /** @type {[string, string|number][]} */
      const offers = m && KEYS[m[1]] && m[1] !== "label" ? Object.entries(tally(KEYS[m[1]])).filter(([v]) => v && v.includes(m[2])).sort((a, b) => b[1] - a[1]).slice(0, 7).map(([v, n]) => [`${m[1]}:${v}`, n]) : Object.keys(KEYS).filter((k) => k.startsWith(word)).map((k) => [`${k}:`, HINTS[k]]);
      replace(menu, offers.map(([text, note]) => h("li", { role: "option", "aria-selected": "false", onpointerdown: (e) => { e.preventDefault(); if (text.endsWith(":")) { input.value = text; suggest(); } else take(text); } }, h("code", text), h("span.note", typeof note === "number" ? count(note) : note))));
      menu.hidden = !offers.length || document.activeElement !== input;
      input.setAttribute("aria-expanded", String(!menu.hidden));
    }
    function take(text) { input.value = ""; setTokens([...tokens, ...parse(text)]); suggest(); }
    input.addEventListener("input", () => { if (/\s$/.test(input.value) && input.value.trim()) take(input.value); else suggest(); });
    input.addEventListener("focus", suggest);
    input.addEventListener("blur", () => { menu.hidden = true; input.setAttribute("aria-expanded", "false"); });
    input.addEventListener("keydown", (e) => {
      if (e.key === "Enter" && input.value.trim()) take(input.value);
      else if (e.key === "Backspace" && !input.value && tokens.length) setTokens(tokens.slice(0, -1));
      else if (e.key === "Escape" || e.key === "ArrowDown") { menu.hidden = true; focusRow(); }
    });
    const focusRow = () => /** @type {HTMLElement|null} */ (viewport.querySelector(`[data-i="${ui.at}"]`))?.focus();

    /** @param {Sandbox} one */
    const value = (one) => ({ status: STATES.indexOf(one.status), cpu: one.cpuUse?.at(-1) ?? -1, memory: one.memoryUse?.at(-1) ?? -1, ready: one.ready && one.created ? one.ready - one.created : 1e9, owner: who.owner, created: one.created ?? one.ended ?? 0 }[ui.sort] ?? one[ui.sort] ?? "");
    function refresh() {
      list = live.list_().filter((one) => matches(one, tokens)).sort((a, b) => (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : a.id < b.id ? -1 : 1) * (ui.down ? -1 : 1));
      known = new Set(live.all.keys());
      fresh = 0;
      ui.at = Math.min(ui.at, Math.max(list.length - 1, 0));
      replace(chips, tokens.map((t) => h("span.chip", t.key ? h("span.k", `${t.not ? "not " : ""}${t.key}:`) : null, t.value, h("button", { type: "button", "aria-label": `Remove ${t.word}`, onclick: () => setTokens(tokens.filter((x) => x !== t)) }, icon("close")))));
      drawFacets(); drawHead(); drawRows(true); drawBulk(); drawMore();
    }
    function drawFacets() {
      const counts = tally("status"), chosen = tokens.find((t) => t.key === "state" && !t.not)?.value ?? "all", rest = tokens.filter((t) => t.key !== "state"), all = live.all.size;
      replace(facets, ["all", ...STATES.filter((k) => k !== "paused" || counts.paused)].map((k) => h("button", { type: "button", cls: k === "all" ? "" : `st-${k}`, "aria-pressed": String(chosen === k), onclick: () => setTokens(k === "all" ? rest : [...parse(`state:${k}`), ...rest]) }, k === "all" ? null : glyph(k), k[0].toUpperCase() + k.slice(1), h("span.n", count(k === "all" ? all : counts[k] || 0)))));
      table.classList.toggle("only-ended", chosen === "ended" || chosen === "failed");
      summary.textContent = list.length === all ? `${count(all)} ${all === 1 ? "sandbox" : "sandboxes"}` : `${count(list.length)} of ${count(all)}`;
      table.setAttribute("aria-rowcount", String(list.length + 1));
    }
    function drawMore() {
      replace(more, fresh ? button(`Show ${count(fresh)} new`, { kind: "small", glyph: "plus", title: "Sandboxes that were created since this list was drawn", onclick: refresh }) : null);
    }
    function pickTo(i, range) {
      const one = list[i]?.id;
      if (!one) return;
      if (range) for (let k = Math.min(ui.anchor, i); k <= Math.max(ui.anchor, i); k += 1) ui.picked.add(list[k].id);
      else { if (ui.picked.has(one)) ui.picked.delete(one); else ui.picked.add(one); ui.anchor = i; }
      drawRows(true); drawBulk();
    }
    function use(series, limit, text, label) { return series ? [spark(series, limit, { label }), h("span.num", text)] : dash(); }
    /** @param {Sandbox} x @param {number} i */
    function row(x, i) {
      const on = ui.picked.has(x.id), memoryLimit = quantity(x.memory), cpuLimit = cores(x.cpu), over = x.memoryUse && memoryLimit && (x.memoryUse.at(-1) ?? 0) / memoryLimit > 0.9, alive = x.status === "ready" || x.status === "leaving" || x.status === "paused", at_ = x.created ?? x.ended;
      const to = `sandboxes/${encodeURIComponent(x.id)}/timeline`, last = x.reason ? h("span.cause", isOrdinary(x) ? null : fault(x.fault, { brief: true }), h("b", safe(x.reason)), h("span.note", safe(x.message))) : x.command ? safe(x.command.line, "code") : h("span.note", x.status === "pending" ? "waits for its image" : x.status === "paused" ? "paused" : "–");
      return h("div.v-row", { role: "row", "aria-rowindex": i + 2, "aria-selected": String(on), cls: on ? "picked" : "", tabindex: i === ui.at ? 0 : -1, "data-i": i, style: { transform: `translateY(${i * rowHeight()}px)` }, onfocus: () => { ui.at = i; },
        onclick: (e) => { if (!e.target.closest("label") && !e.target.closest("a")) go(to); } },
        h("span.c-pick", { role: "gridcell" }, h("label", { onclick: (e) => { e.preventDefault(); pickTo(i, e.shiftKey); } }, h("input", { type: "checkbox", tabindex: -1, checked: on, "aria-label": `Select ${x.id}` }))),
        h("span.c-state", { role: "gridcell" }, state(x.status, x.status === "failed" ? x.fault : "")), h("span.c-id", { role: "gridcell" }, h("a", { href: `#/${to}`, cls: "link mono", tabindex: -1 }, safe(x.id))),
        h("span.c-image.mono", { role: "gridcell", title: x.image }, x.image ? h("bdi", safe(shortImage(x.image))) : dash()), h("span.c-owner", { role: "gridcell" }, who.owner), h("span.c-group.mono", { role: "gridcell" }, x.group ? safe(x.group) : dash()),
        h("span.c-age.num", { role: "gridcell" }, at_ ? age(Math.max(now() - at_, 0)) : dash()), h("span.c-ready.num", { role: "gridcell" }, x.ready && x.created ? span(Math.max(x.ready - x.created, 0)) : dash()),
        h("span.c-cpu", { role: "gridcell" }, use(x.cpuUse, cpuLimit, x.cpuUse ? `${(x.cpuUse.at(-1) ?? 0).toFixed(1)}/${x.cpu}` : "", `CPU of ${x.cpu} cores`)), h("span", { cls: `c-mem${over ? " hot" : ""}`, role: "gridcell" }, use(x.memoryUse, memoryLimit, x.memoryUse ? bytes(x.memoryUse.at(-1) ?? 0) : "", `memory of ${bytes(memoryLimit)}`)),
        h("span.c-exp.num", { role: "gridcell" }, alive && x.expires ? age(Math.max(x.expires - now(), 1)) : dash()), h("span.c-last", { role: "gridcell" }, last));
    }
    /** @param {boolean} [always] */
    function drawRows(always = false) {
      const tall = rowHeight(), from = Math.max(0, Math.floor(viewport.scrollTop / tall) - 6), to = Math.min(list.length, from + Math.ceil((viewport.clientHeight || 800) / tall) + 12), range = `${from} ${to}`;
      if (!always && range === drawn) return;
      drawn = range;
      const focused = body.contains(document.activeElement);
      body.style.height = `${list.length * tall}px`;
      replace(body, list.length ? list.slice(from, to).map((x, k) => row(x, from + k)) : h("div.nothing", { role: "row" }, h("div", { role: "gridcell" }, h("p", "No sandbox matches this filter."), button("Clear the filter", { onclick: () => setTokens([]) }))));
      if (focused) /** @type {HTMLElement|null} */ (viewport.querySelector(`[data-i="${ui.at}"]`))?.focus({ preventScroll: true });
    }
    function drawHead() {
      const every = list.length > 0 && list.every((x) => ui.picked.has(x.id));
      replace(head, h("span.c-pick", { role: "columnheader" }, h("input", { type: "checkbox", checked: every, "aria-label": "Select all that match", onchange: () => { ui.picked = every ? new Set() : new Set(list.map((x) => x.id)); refresh(); } })),
        COLUMNS.map(([key, name, cls]) => h("span", { cls, role: "columnheader", "aria-sort": ui.sort === key ? (ui.down ? "descending" : "ascending") : "none" }, h("button.sort", { type: "button", onclick: () => { ui.down = ui.sort === key ? !ui.down : ["created", "cpu", "memory"].includes(key); ui.sort = key; viewport.scrollTop = 0; ui.at = 0; refresh(); } }, name, h("span.dir", { "aria-hidden": "true" }, ui.sort === key ? (ui.down ? "↓" : "↑") : "↕")))));
    }
    const picked = () => live.list_().filter((x) => ui.picked.has(x.id));
    function remove() {
      const targets = picked().filter((x) => x.status !== "ended"), n = targets.length, running = targets.filter((x) => x.status === "ready" || x.status === "leaving").length, what = `${count(n)} ${n === 1 ? "sandbox" : "sandboxes"}`;
      if (!n) { toast("These sandboxes have ended already"); return; }
      dialog(`Delete ${what}?`, [h("p", `${count(running)} of them ${running === 1 ? "is" : "are"} ready. Commands that run in them end, and their files are lost. This cannot be undone.`), h("p.note", "Sandboxes that have ended are skipped.")], [[`Delete ${what}`, "danger fill", async () => {
        toast(`${what} ${n === 1 ? "is" : "are"} being deleted`);
        ui.picked.clear();
        refresh();
        const failed = await each(targets.map((x) => x.id), (id) => call("DELETE", path(["sandboxes", id])));
        if (failed) toast(`${count(failed)} of ${count(n)} could not be deleted`);
      }]]);
    }
    async function extend() {
      const targets = picked().filter((x) => x.status === "ready"), n = targets.length, failed = await each(targets.map((x) => x.id), async (id) => live.record(await call("PUT", path(["sandboxes", id, "lifetime"]), { extend_s: 3600 })));
      drawRows(true);
      toast(failed ? `${count(failed)} of ${count(n)} could not be extended` : `${count(n)} ${n === 1 ? "sandbox ends" : "sandboxes end"} 1 h later`);
    }
    function drawBulk() {
      const n = ui.picked.size;
      replace(bulk, n ? h("div.bulk", { role: "toolbar", "aria-label": "Selected sandboxes" }, h("b", `${count(n)} selected`), button("Extend by 1 h", { onclick: extend }), button("Copy ids", { glyph: "copy", onclick: () => navigator.clipboard?.writeText([...ui.picked].join("\n")) }), button("Export as JSON lines", { onclick: () => save(picked().map((x) => `${JSON.stringify(x.record ?? { sandbox_id: x.id, status: x.status, reason: x.reason, fault: x.fault })}\n`).join(""), "sandboxes.jsonl") }), h("span.grow"), button("Delete", { kind: "danger", key: "d", onclick: remove }), button("Clear", { kind: "quiet", key: "Esc", onclick: () => { ui.picked.clear(); refresh(); } })) : null);
    }
    viewport.addEventListener("scroll", () => requestAnimationFrame(() => drawRows()), { passive: true });
    viewport.addEventListener("keydown", (e) => {
      if (!(/** @type {Element} */ (e.target)).matches(".v-row:not(.v-head)") || e.metaKey || e.ctrlKey || e.altKey) return;
      const to = (i) => { ui.at = Math.min(Math.max(i, 0), list.length - 1); const top = ui.at * rowHeight(); if (top < viewport.scrollTop) viewport.scrollTop = top; else if (top + rowHeight() * 2 > viewport.scrollTop + viewport.clientHeight) viewport.scrollTop = top + rowHeight() * 2 - viewport.clientHeight; drawRows(true); focusRow(); };
      const act = { ArrowDown: () => to(ui.at + 1), j: () => to(ui.at + 1), ArrowUp: () => to(ui.at - 1), k: () => to(ui.at - 1), Home: () => to(0), End: () => to(list.length), PageDown: () => to(ui.at + 20), PageUp: () => to(ui.at - 20), Enter: () => list[ui.at] && go(`sandboxes/${encodeURIComponent(list[ui.at].id)}/timeline`), x: () => { pickTo(ui.at, false); to(ui.at); }, X: () => { pickTo(ui.at, true); to(ui.at); }, d: () => ui.picked.size && remove(), Escape: () => { ui.picked.clear(); refresh(); } }[e.key];
      if (act) { e.preventDefault(); act(); }
    });
    document.addEventListener("keydown", (e) => {
      const target = /** @type {Element} */ (e.target);
      if (e.key !== "c" || e.metaKey || e.ctrlKey || e.altKey || target.matches("input, textarea, select") || document.querySelector("dialog[open]")) return;
      e.preventDefault();
      create(go);
    }, { signal });
    phone.addEventListener("change", () => drawRows(true), { signal });
    addEventListener("resize", () => drawRows(true), { signal });
    add(viewport, [head, body]);

    const full = [h("div.filterbar", h("div.filter", icon("search"), chips, input, h("kbd", "/"), menu)), h("div.list-head", facets, h("span.grow"), more), bulk, table];
    let shown = "";
    /** What is shown in place of the list, if it is not there. */
    function frame() {
      const next = live.loaded ? (live.all.size || tokens.length ? "list" : "empty") : live.problem ? "error" : "loading";
      if (next === shown) return false;
      shown = next;
      holder.className = next === "list" ? "v-holder" : "";
      if (next === "list") { replace(holder, full); viewport.scrollTop = keep.get("sandboxes-top") ?? 0; } else if (next === "empty") replace(holder, empty("No sandboxes", "Sandboxes appear here when a client creates them, and stay for an hour after they ended.", command("holdfast run -d --name web host python3 -m http.server")));
      else if (next === "error") replace(holder, problem(live.problem ?? new Problem(0, {}), () => live.list()));
      else replace(holder, loading("sandboxes", skeleton(14)));
      return true;
    }
    function changed() {
      if (frame()) { if (shown === "list") refresh(); else summary.textContent = ""; return; }
      if (shown !== "list") return;
      const before = new Set([...live.all.keys()].filter((id) => !known.has(id))).size, inUse = table.matches(":hover") || body.contains(document.activeElement) || ui.picked.size > 0;
      if (!inUse || !list.length) { refresh(); return; }
      fresh = before;
      list = list.map((one) => live.all.get(one.id) ?? one);
      drawFacets(); drawRows(true); drawMore();
    }
    live.addEventListener("change", changed, { signal });
    live.addEventListener("state", () => { if (frame() && shown === "list") refresh(); }, { signal });
    const clock = setInterval(() => { if (shown === "list") drawRows(true); }, 10000); // ages
    signal.addEventListener("abort", () => { keep.set("sandboxes-top", viewport.scrollTop); clearInterval(clock); });
    add(root, [h("header.head", h("h1", "Sandboxes"), summary, h("div.actions", button("Create", { kind: "primary", glyph: "plus", key: "c", onclick: () => create(go) }))), holder]);
    if (frame() && shown === "list") { refresh(); viewport.scrollTop = keep.get("sandboxes-top") ?? 0; drawRows(true); }
  },
};
