// The terminal: a new shell, or one that lives already, in xterm.js over a session that continues when a gateway restarts. Owns what its state
// is called, the key that leaves it, and the names of the shells that this page opened.
import { add, h, replace, safe } from "../dom.js";
import { xterm } from "../vendor.js";
import { allowStyles } from "../constructed_styles.js";
import { button, empty, glyph, segmented, toast } from "../parts.js";

const TEXTS = { connecting: ["pending", "Connecting"], connected: ["ready", "Connected"], reconnecting: ["leaving", "Reconnecting. The shell continues to run; input is refused until it is back."], ended: ["ended", "Ended"], left: ["ended", "Left. The shell continues to run"] };
const MOST_WAITING = 64 * 1024;
const SCROLLBACK = 5000;

/** xterm's colours from the tokens of the page. @param {Element} node */
export function colours(node) {
  const style = getComputedStyle(node), token = (name) => style.getPropertyValue(name).trim();
  const names = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"], all = { background: token("--panel"), foreground: token("--ink"), cursor: token("--ink"), cursorAccent: token("--panel"), selectionBackground: token("--picked"), selectionInactiveBackground: token("--hover") };
  names.forEach((name, i) => { all[name] = token(`--a${i}`); all[`bright${name[0].toUpperCase()}${name.slice(1)}`] = token(`--a${i}`); });
  return all;
}

/** @param {{id: string, episode: import("../episode.js").Episode, signal: AbortSignal, keep: Map<string, any>}} context */
export function terminal({ id, episode, signal, keep }) {
  const box = h("div.term-box"), bar = h("div.tools"), note = h("p.note"), root = h("section.term", bar, box, note), prefix = `page-${id}-`;
  /** @type {any} */
  let screen = null;
  /** @type {any} */
  let fit = null;
  /** @type {import("../session.js").Channel|null} */
  let channel = null;
  /** The one that was left here. @type {import("../session.js").Channel|null} */
  let leaving = null;
  let name = keep.get(`terminal-${id}`) ?? "", state = "connecting", loss = 0, why = "";
  const living = () => episode.commands.filter((c) => c.running && c.where === "terminal");

  function draw() {
    const [mark, text] = TEXTS[state], shells = [...new Set([name, ...living().map((c) => c.id)])].filter(Boolean);
    const held = bar.contains(document.activeElement) ? [...bar.querySelectorAll("button")].indexOf(/** @type {any} */ (document.activeElement)) : -1;
    replace(bar, shells.length ? segmented("Shells", shells.map((one) => [one, one.startsWith(prefix) ? `shell ${one.slice(prefix.length)}` : one]), name, (one) => { open(one); }) : null,
      button("New shell", { kind: "small", glyph: "plus", onclick: () => open(fresh()) }), h("span.grow"), h("span", { cls: `term-state st-${mark}`, role: "status" }, glyph(mark), text, state === "ended" && why ? [": ", safe(why)] : ""),
      button("Detach", { kind: "small", disabled: !channel, title: "The shell continues to run", onclick: () => { if (channel) leaving = channel; channel?.close(true); screen?.blur(); } }));
    if (held >= 0) bar.querySelectorAll("button")[held]?.focus();
    replace(note, "Ctrl ] leaves the terminal. A shell continues when this page is closed, and can be joined again here", name ? [" or with ", h("code", `holdfast shell --attach ${name} ${id}`)] : null, ".");
  }
  function fresh() {
    const used = new Set([...living().map((c) => c.id), name]);
    for (let n = 1; ; n += 1) if (!used.has(`${prefix}${n}`)) return `${prefix}${n}`;
  }
  /** @param {string} wanted */
  function open(wanted) {
    if (!screen) return;
    if (channel) { const old = channel; channel = null; old.handlers = { output: (_data, _stream, used) => used() }; old.close(true); }
    name = wanted;
    keep.set(`terminal-${id}`, name);
    screen.reset();
    fit.fit();
    state = "connecting";
    why = "";
    const own = episode.attach().open("terminal", { name, rows: screen.rows, cols: screen.cols }, {
      started: () => { if (channel === own) { state = "connected"; draw(); episode.soon(); } },
      output: (data, _stream, used) => screen.write(data, used),
      gap: (dropped) => screen.write(`\r\n[${dropped} bytes dropped here]\r\n`),
      ended: (result) => {
        if (channel !== own) return;
        channel = null;
        state = leaving === own ? "left" : "ended";
        why = result.get("detached") || result.get("exit_code") === null || result.get("exit_code") === undefined ? "the shell was left" : `exit ${result.get("exit_code")}`;
        keep.delete(`terminal-${id}`);
        draw();
        episode.soon();
      },
      failed: (error) => { if (channel === own) { channel = null; state = leaving === own ? "left" : "ended"; why = error.message || error.code; draw(); } },
    });
    channel = own;
    if (episode.session?.state === "connected") state = "connected";
    draw();
    screen.focus();
  }
  episode.addEventListener("session", (e) => {
    const was = state, next = /** @type {CustomEvent} */ (e).detail.state;
    if (!channel && next !== "ended") return;
    state = next;
    if (next === "ended") why = /** @type {CustomEvent} */ (e).detail.why;
    if (next === "reconnecting" && was === "connected") loss = performance.now();
    if (next === "connected" && was === "reconnecting" && loss) { toast(`Reconnected after ${((performance.now() - loss) / 1000).toFixed(1)} s. Nothing was lost.`); loss = 0; }
    draw();
  }, { signal });
  episode.addEventListener("change", draw, { signal });

  async function begin() {
    const parts = await xterm();
    if (signal.aborted) return;
    if (!parts) { replace(root, empty("This build has no terminal", "It was built without npm, which brings xterm.js. Build it on a machine with npm: make setup, or make wheels. In a terminal of your machine the same shell is:", h("div.cmd", h("code", `holdfast exec -it ${id} bash`)))); return; }
    allowStyles();
    const term = new parts.Terminal({ fontFamily: getComputedStyle(document.documentElement).getPropertyValue("--mono"), fontSize: 12, lineHeight: 1.3, scrollback: SCROLLBACK, cursorBlink: !matchMedia("(prefers-reduced-motion: reduce)").matches, theme: colours(document.documentElement), screenReaderMode: true, allowProposedApi: false, linkHandler: { activate: () => {} } });
    screen = term;
    fit = new parts.FitAddon();
    term.loadAddon(fit);
    term.open(box);
    box.querySelector("textarea")?.setAttribute("aria-label", "Terminal. Control and right bracket leave it.");
    fit.fit();
    term.attachCustomKeyEventHandler((e) => {
      if (e.ctrlKey && e.key === "]") { if (e.type === "keydown") { term.blur(); bar.querySelector("button")?.focus(); } return false; }
      return true;
    });
    const encoder = new TextEncoder();
    /** @param {Uint8Array} data */
    const type = (data) => {
      if (!channel || state === "reconnecting" || state === "ended" || state === "left") return; // refused, not lost: the state says so
      if (channel.waiting + data.length > MOST_WAITING) { toast("This paste is too large: 64 KiB at a time"); return; }
      channel.write(data);
    };
    term.onData((text) => type(encoder.encode(text)));
    term.onBinary((text) => type(Uint8Array.from(text, (c) => c.charCodeAt(0))));
    term.onResize(({ rows, cols }) => channel?.resize(rows, cols));
    const sizes = new ResizeObserver(() => requestAnimationFrame(() => { if (box.isConnected) fit.fit(); }));
    sizes.observe(box);
    const dark = matchMedia("(prefers-color-scheme: dark)"), repaint = () => { term.options.theme = colours(document.documentElement); };
    dark.addEventListener("change", repaint, { signal });
    const themes = new MutationObserver(repaint);
    themes.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    signal.addEventListener("abort", () => { sizes.disconnect(); themes.disconnect(); term.dispose(); });
    Object.defineProperty(box, "text", { configurable: true, value: () => Array.from({ length: term.buffer.active.length }, (_, i) => term.buffer.active.getLine(i)?.translateToString(true) ?? "").join("\n") });
    open(name || living()[0]?.id || fresh());
  }
  draw();
  if (episode.state === "loading") episode.addEventListener("change", begin, { once: true, signal }); else begin();
  return add(root, []);
}
