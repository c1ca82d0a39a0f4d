// Replays a recording: a list of commands, a screen, and a scrubber with one segment for each command. Owns the position, its pace and its keys.
// The screen of a terminal is xterm.js, which gets what the terminal got and answers nothing.
import { add, bytes, clock, count, h, replace, safe, wall } from "../dom.js";
import { lines } from "../ansi.js";
import { save } from "../downloads.js";
import { allowStyles } from "../constructed_styles.js";
import { button, dialog, empty, fault, glyph, icon, link, loading, problem, segmented, skeleton, toast } from "../parts.js";
import { Problem, bytesOf, call, get, path } from "../api.js";
import { isOrdinary, live } from "../live.js";
import { Recording, asciicast, messages, outcome } from "../recording.js";
import { xterm } from "../vendor.js";
import { colours } from "./terminal.js";

const SPEEDS = [1, 2, 4, 16];
const SHOWN_FRAMES = 400;
const SHOWN_CHARACTERS = 48 * 1024;
const SHOWN_SEGMENTS = 1000;
const IDLE_S = 1;
const AGAIN_MS = [600, 1000, 2000, 6000];

/**
 * The player of one recording, whose content may grow.
 * @param {{recording: Recording, isOver: () => boolean, signal: AbortSignal, from: string}} context `from`: the id of a command to begin at
 */
export function player({ recording, isOver, signal, from }) {
  const ui = { t: 0, speed: 4, playing: false, skip: true, last: 0, text: "" };
  const screen = h("pre.screen", { tabindex: 0, "aria-label": "Output at the chosen time" }), terminalBox = h("div.replay-terminal", { hidden: true, tabindex: 0, role: "group", "aria-label": "Screen of the terminal at the chosen time" }), now = h("span.time"), list = h("ol.chapters", { "aria-label": "Commands" });
  const search = /** @type {HTMLInputElement} */ (h("input.field", { type: "search", placeholder: "Find a command", "aria-label": "Find a command" }));
  const playButton = button("Play", { kind: "primary", glyph: "play", onclick: () => play(!ui.playing) }), fill = h("i.done"), head = h("i.head"), segments = h("div.segments"), speeds = h("div.speed");
  const track = h("div.track-box", { role: "slider", tabindex: 0, "aria-label": "Position", "aria-valuemin": 0 }, h("div.rail"), fill, segments, head);
  /** @type {{node: HTMLElement, sign: string}[]} */
  const items = [];
  /** The latest end of the commands up to each one: nothing runs after it. @type {number[]} */
  let busy = [];
  let shownFrames = -1, current = -1;
  /** @type {{command: import("../recording.js").Recorded, count: number}|null} */
  let shownTerminal = null;
  /** @type {any} */
  let term = null;
  let termAsked = false;

  const command = () => Recording.until(recording.commands, ui.t) - 1;
  const end = (c) => (c.dur === null ? recording.length : c.at + c.dur);

  /** The content has grown. */
  function grown() {
    const { commands, length } = recording;
    busy = [];
    commands.forEach((c, i) => {
      busy.push(Math.max(busy[i - 1] ?? 0, end(c)));
      const kind = outcome(c, isOver()), sign = `${kind} ${c.exit}`;
      items[i] ??= { node: h("li"), sign: "" };
      if (items[i].sign === sign) return;
      items[i].sign = sign;
      replace(items[i].node, h("button", { type: "button", onclick: () => seek(c.at) }, h("span.t", clock(c.at)), safe(c.text.slice(0, 500), "code"), kind === "ok" ? null : h("span", { cls: kind === "running" ? "exit run" : `exit f-${kind === "unknown" ? "infrastructure" : "workload"}` }, kind === "unknown" ? "unknown" : kind === "running" ? "running" : String(c.exit))));
      if (!items[i].node.isConnected) list.append(items[i].node);
    });
    let edge = -1;
    const width = (c) => (end(c) - c.at) / length * 100, left = (t) => t / length * 100;
    const drawn = commands.filter((c) => { const keep = commands.length <= SHOWN_SEGMENTS || outcome(c, isOver()) !== "ok" || left(c.at) > edge; if (keep) edge = left(c.at) + Math.max(width(c), 0.1); return keep; });
    replace(segments, drawn.slice(-4 * SHOWN_SEGMENTS).map((c) => h("i", { cls: `chap b-${outcome(c, isOver())}`, title: `${c.n}: ${c.text.slice(0, 60)}`, style: { left: `${left(c.at)}%`, width: `${width(c)}%` } })),
      recording.marks.slice(-SHOWN_SEGMENTS).map((m) => h("i", { cls: `mk ${m.kind}`, title: m.text, style: { left: `${left(m.at)}%`, width: `${m.dur / length * 100}%` } })));
    track.setAttribute("aria-valuemax", String(Math.round(length)));
    shownFrames = -1;
    draw();
  }
  /** @param {import("../recording.js").Frame[]} frames */
  function text(frames) {
    /** @type {any[]} */
    const nodes = [];
    let i = 0;
    while (i < frames.length) {
      const { kind, n, fault: whose } = frames[i];
      let shown = frames[i].text;
      i += 1;
      if (kind === "out" || kind === "err") while (i < frames.length && frames[i].kind === kind && frames[i].n === n) { shown += frames[i].text; i += 1; }
      if (kind === "prompt") nodes.push(h("span.ln.pr", h("span.prompt", `${String(n).padStart(2)} $ `), shown.split("\n").map((row, k) => [k ? h("span.prompt", "   > ") : null, safe(row, "b"), "\n"])));
      else if (kind === "mark") nodes.push(h("span.ln.mk-line", glyph("leaving"), safe(shown), "\n"));
      else if (kind === "end") nodes.push(h("span", { cls: `ln mk-line ${recording.end && recording.end.reason !== "deleted" ? `f-${whose}` : ""}` }, glyph("ended"), safe(`The sandbox ended: ${shown}`), "\n"));
      else if (kind === "exit") nodes.push(h("span", { cls: `ln ex f-${whose}` }, glyph(whose === "infrastructure" ? whose : "workload"), safe(shown), "\n"));
      else if (kind !== "screen") nodes.push(h("span", { cls: `ln ${kind === "err" ? "se" : ""}` }, lines(shown)));
    }
    return nodes;
  }
  function draw() {
    const seen = Recording.until(recording.frames, ui.t), at = command(), { length } = recording;
    if (seen !== shownFrames) {
      shownFrames = seen;
      const acting = recording.frames[seen - 1], one = acting?.n ? recording.commands[acting.n - 1] : null, inTerminal = one?.kind === "terminal" && acting.kind !== "exit";
      terminalBox.hidden = !inTerminal;
      screen.hidden = inTerminal;
      if (inTerminal) drawTerminal(one);
      else {
        let first = seen, size = 0;
        while (first > 0 && seen - first < SHOWN_FRAMES && size < SHOWN_CHARACTERS) { first -= 1; size += recording.frames[first].text.length; }
        replace(screen, text(recording.frames.slice(first, seen)));
        screen.scrollTop = screen.scrollHeight;
      }
    }
    const place = `${Math.min(ui.t / length, 1) * 100}%`;
    fill.style.width = head.style.left = place;
    now.textContent = `${clock(ui.t, true)} / ${clock(length, true)}`;
    track.setAttribute("aria-valuenow", String(Math.round(ui.t)));
    track.setAttribute("aria-valuetext", `${clock(ui.t)} of ${clock(length)}, command ${at + 1}`);
    if (at === current) return;
    items[current]?.node.classList.remove("on");
    items[current]?.node.querySelector("button")?.removeAttribute("aria-current");
    current = at;
    const item = items[at]?.node;
    if (!item) return;
    item.classList.add("on");
    item.querySelector("button")?.setAttribute("aria-current", "step");
    const away = item.offsetTop - list.scrollTop;
    if (away < 0 || away > list.clientHeight - 30) list.scrollTop = item.offsetTop - list.clientHeight / 2;
  }
  /** @param {import("../recording.js").Recorded} one */
  function drawTerminal(one) {
    if (!term) { begin(); return; }
    const count = Recording.until(one.screen, ui.t);
    if (shownTerminal?.command !== one || shownTerminal.count > count) { term.reset(); shownTerminal = { command: one, count: 0 }; }
    for (const piece of one.screen.slice(shownTerminal.count, count)) if (piece.text === undefined) term.resize(piece.cols, piece.rows); else term.write(piece.text);
    shownTerminal.count = count;
  }
  async function begin() {
    if (termAsked) return;
    termAsked = true;
    const parts = await xterm();
    if (signal.aborted) return;
    if (!parts) { replace(terminalBox, empty("This build has no terminal", "It was built without npm, which brings xterm.js.")); return; }
    allowStyles();
    term = new parts.Terminal({ fontFamily: getComputedStyle(document.documentElement).getPropertyValue("--mono"), fontSize: 12, lineHeight: 1.2, scrollback: 0, disableStdin: true, cursorInactiveStyle: "block", theme: colours(document.documentElement), linkHandler: { activate: () => {} } });
    term.open(terminalBox);
    Object.defineProperty(terminalBox, "text", { configurable: true, value: () => Array.from({ length: term.buffer.active.length }, (_, i) => term.buffer.active.getLine(i)?.translateToString(true) ?? "").join("\n") });
    term.textarea?.setAttribute("tabindex", "-1");
    term.textarea?.setAttribute("aria-hidden", "true");
    signal.addEventListener("abort", () => term.dispose());
    shownFrames = -1;
    draw();
  }
  /** @param {number} t */
  function seek(t) { ui.t = Math.min(Math.max(t, 0), recording.length); draw(); }
  /** @param {boolean} on */
  function play(on) {
    if (ui.playing === on) return;
    ui.playing = on;
    replace(playButton, icon(on ? "pause" : "play"), h("span", on ? "Pause" : "Play"));
    if (!on) return;
    if (ui.t >= recording.length) ui.t = 0;
    ui.last = performance.now();
    requestAnimationFrame(step);
  }
  /** @param {number} at */
  function step(at) {
    if (!ui.playing || signal.aborted) return;
    ui.t += Math.max(at - ui.last, 0) / 1000 * ui.speed;
    ui.last = at;
    const next = recording.frames[Recording.until(recording.frames, ui.t)]?.t;
    if (ui.skip && next !== undefined && next - ui.t > IDLE_S && (busy[command()] ?? 0) <= ui.t) ui.t = next - 0.6;
    if (ui.t >= recording.length) { ui.t = recording.length; if (isOver()) play(false); }
    draw();
    if (ui.playing) requestAnimationFrame(step);
  }
  /** @param {number} by */
  function jump(by) { const to = recording.commands[Math.min(Math.max(command() + by, 0), recording.commands.length - 1)]; if (to) seek(to.at); }
  function drawSpeed() {
    replace(speeds, segmented("Speed", SPEEDS.map((one) => [one, `${one}×`]), ui.speed, (one) => { ui.speed = one; drawSpeed(); }), button("Skip idle", { key: "i", pressed: ui.skip, onclick: () => { ui.skip = !ui.skip; drawSpeed(); } }));
  }
  /** @param {number} by */
  const faster = (by) => { ui.speed = SPEEDS[Math.min(Math.max(SPEEDS.indexOf(ui.speed) + by, 0), SPEEDS.length - 1)]; drawSpeed(); };
  let drag = false;
  /** @param {PointerEvent} e */
  const under = (e) => { const box = track.getBoundingClientRect(); return (e.clientX - box.left) / box.width * recording.length; };
  track.addEventListener("pointerdown", (e) => { drag = true; track.setPointerCapture(e.pointerId); seek(under(e)); });
  track.addEventListener("pointermove", (e) => { if (drag) seek(under(e)); });
  track.addEventListener("pointerup", () => { drag = false; });
  search.addEventListener("input", () => {
    const wanted = search.value.toLowerCase();
    recording.commands.forEach((c, i) => { items[i].node.hidden = !c.text.toLowerCase().includes(wanted); });
  });
  search.addEventListener("keydown", (e) => { if (e.key === "Enter") /** @type {HTMLElement|null} */ (list.querySelector("li:not([hidden]) button"))?.click(); });
  document.addEventListener("keydown", (e) => {
    const target = /** @type {Element} */ (e.target);
    if (target.matches("input, textarea, select") || document.querySelector("dialog[open]") || e.metaKey || e.ctrlKey || e.altKey || e.defaultPrevented) return;
    const act = { " ": () => play(!ui.playing), ArrowLeft: () => seek(ui.t - 5), ArrowRight: () => seek(ui.t + 5), "[": () => jump(ui.t - (recording.commands[command()]?.at ?? 0) > 1 ? 0 : -1), "]": () => jump(1), Home: () => seek(0), End: () => seek(recording.length), i: () => { ui.skip = !ui.skip; drawSpeed(); }, "+": () => faster(1), "-": () => faster(-1) }[e.key];
    if (act && !(e.key === " " && target.closest("button, a"))) { e.preventDefault(); act(); }
  }, { signal });
  signal.addEventListener("abort", () => { ui.playing = false; });
  drawSpeed();
  const root = h("section.player", { "aria-label": "Replay" }, h("div.player-main", h("div.player-side", h("label.find", icon("search"), search, h("kbd", "/")), list), h("div.player-screen", screen, terminalBox)),
    h("div.controls", h("div.row", button("", { glyph: "prev", title: "Previous command", onclick: () => jump(-1) }), playButton, button("", { glyph: "next", title: "Next command", onclick: () => jump(1) }), now), track, speeds));
  let begun = false, shownLength = 0, wasOver = false;
  return {
    root,
    /** Shows what was read since; a position at the end stays there while the sandbox is recorded. */
    grown() {
      const wasLast = begun && !wasOver && ui.t >= shownLength;
      shownLength = recording.length;
      wasOver = isOver();
      grown();
      if (!begun && recording.commands.length) { begun = true; const wanted = recording.commands.find((c) => c.id === from); seek(wanted ? wanted.at : isOver() ? recording.commands[0].at : recording.length); } else if (wasLast) seek(recording.length);
    },
  };
}
/** Offers the forms of a recording. @param {string} id @param {string} name of the sandbox */
export function exporting(id, name) {
  const forms = [["asciicast v2", "for asciinema and web players", ".cast"], ["JSON lines", "every command, its output with times, exit and cause", ".jsonl"], ["Chat messages", "tool calls and results, in the columns that the recipes write", ".messages.jsonl"]];
  async function write(ending) {
    try {
      const data = await bytesOf(path(["recordings", id, "lines"])), whole = new Recording(true);
      if (ending !== ".jsonl") whole.take(data);
      save(ending === ".jsonl" ? data : ending === ".cast" ? asciicast(whole, id) : messages(whole, id), `${name}${ending}`);
    } catch (error) { if (error instanceof Problem) dialog("The recording could not be read", problem(error)); }
  }
  const shown = dialog(`Export ${name}`, h("ul.choices", forms.map(([title, text, ending]) => h("li", h("button.choice", { type: "button", onclick: () => { shown.dispatchEvent(new Event("cancel")); write(ending); } }, h("b", title), h("span.note", `${text} · ${ending}`))))));
}

/**
 * Reads a recording and shows it in `box`: what is written so far, and while the sandbox lives what comes.
 * @param {{id: string, sandbox: string, signal: AbortSignal, from: string, box: HTMLElement, onchange: (facts: any) => void}} context
 */
export function follow({ id, sandbox, signal, from, box, onchange }) {
  const recording = new Recording();
  /** @type {any} */
  let facts = null;
  let tries = 0, timer = 0, reading = false, more = false, mounted = false;
  const isOver = () => facts?.ended_at != null || recording.end !== null, shown = player({ recording, isOver, signal, from });
  async function read() {
    if (reading) { more = true; return; }
    reading = true;
    try {
      facts = await get(path(["recordings", id]), signal);
      if (recording.bytes < facts.bytes) {
        const before = recording.bytes;
        await bytesOf(path(["recordings", id, "lines"], { offset: recording.bytes }), signal, (piece) => recording.take(piece));
        if (recording.bytes > before) tries = 0;
      }
      if (!mounted) { mounted = true; replace(box, shown.root); }
      shown.grown();
      onchange({ ...facts, shown: recording });
    } catch (error) {
      if (!(error instanceof Problem) || signal.aborted) return;
      if (!mounted) replace(box, error.code === "not_found" ? empty("This recording is gone", "Recordings are kept for a time after the end of their sandbox, and are deleted then.", h("div.row", h("a.btn", { href: "#/recordings" }, "All recordings"))) : problem(error, read, "This recording cannot be read"));
    } finally { reading = false; }
    if (more) { more = false; later(); }
  }
  /** What an event tells is in the store a moment later: it is read then, and again if it was not there yet. */
  function later() {
    if (timer || tries >= AGAIN_MS.length || signal.aborted) return;
    timer = window.setTimeout(async () => { timer = 0; tries += 1; const had = recording.bytes; await read(); if (recording.bytes === had) later(); }, AGAIN_MS[tries]);
  }
  live.addEventListener("event", (e) => { if (/** @type {CustomEvent} */ (e).detail.id === sandbox && !isOver()) { tries = 0; later(); } }, { signal });
  live.addEventListener("state", () => { if (live.state === "live" && !isOver()) { tries = 0; later(); } }, { signal });
  signal.addEventListener("abort", () => clearTimeout(timer));
  replace(box, loading("the recording", skeleton(8)));
  read();
}

export const replay = {
  title: "Replay",
  /** @param {HTMLElement} root @param {import("../main.js").Context} context */
  mount(root, { at, signal, go }) {
    const { id } = at, sandbox = id.slice(0, id.lastIndexOf(".")) || id, box = h("div.replay-box"), head = h("header.head");
    let sign = "";
    /** @param {any} facts */
    function drawHead(facts) {
      const known = JSON.stringify([facts?.ended_at, facts?.shown.commands.length, Math.floor(facts?.shown.length ?? 0)]);
      if (known === sign) return;
      sign = known;
      const over = facts && facts.ended_at !== null;
      replace(head, h("nav.crumb", { "aria-label": "Breadcrumb" }, link("Recordings", "#/recordings"), h("span", "/")), h("h1", safe(sandbox, "span", "mono")),
        facts?.reason ? h("span.cause", isOrdinary(facts) ? null : fault(facts.fault ?? "infrastructure"), h("b", safe(facts.reason))) : facts ? h("span.state.st-ready", glyph("ready"), "recording") : null,
        facts ? h("span.note.lg", `${count(facts.shown.commands.length)} ${facts.shown.commands.length === 1 ? "command" : "commands"} · ${clock(facts.shown.length)} · ${bytes(facts.bytes)}${over ? ` · ended ${wall(facts.ended_at)}` : ""}`) : null,
        facts ? h("div.actions", live.all.has(sandbox) ? h("a.btn", { href: `#/sandboxes/${encodeURIComponent(sandbox)}/timeline` }, "Timeline") : null, button("Export", { glyph: "down", onclick: () => exporting(id, sandbox) }), over ? button("Delete", { kind: "danger", onclick: remove }) : null) : null);
    }
    function remove() {
      dialog("Delete this recording?", h("p", "The commands and outputs in it are lost. This cannot be undone."), [["Delete recording", "danger fill", async () => {
        try { await call("DELETE", path(["recordings", id])); toast("The recording is deleted"); go("recordings"); } catch (error) { if (error instanceof Problem) dialog("The recording is not deleted", problem(error)); }
      }]]);
    }
    drawHead(null);
    add(root, [head, box]);
    follow({ id, sandbox, signal, from: at.tab, box, onchange: drawHead });
  },
};
