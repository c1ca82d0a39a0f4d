// Small parts that every view uses: state shapes, fault tags, buttons, copy, dialogs, and the empty, loading and error states.
import { h, s, add, replace, safe } from "./dom.js";

const GLYPHS = {
  ready: () => s("circle", { cx: 6, cy: 6, r: 4, fill: "currentColor" }),
  pending: () => s("circle", { cx: 6, cy: 6, r: 3.75, fill: "none", stroke: "currentColor", "stroke-width": 1.5, "stroke-dasharray": "2.2 1.72" }),
  leaving: () => [s("circle", { cx: 6, cy: 6, r: 3.5, fill: "none", stroke: "currentColor", "stroke-width": 1.5 }), s("path", { d: "M6 2.5a3.5 3.5 0 0 0 0 7z", fill: "currentColor" })],
  failed: () => s("path", { d: "M2.75 2.75l6.5 6.5M9.25 2.75l-6.5 6.5", stroke: "currentColor", "stroke-width": 1.9, fill: "none" }),
  paused: () => s("path", { d: "M4 2.5v7M8 2.5v7", stroke: "currentColor", "stroke-width": 1.9, fill: "none" }),
  ended: () => s("rect", { x: 3, y: 3, width: 6, height: 6, fill: "none", stroke: "currentColor", "stroke-width": 1.4 }),
  infrastructure: () => s("path", { d: "M6 1.75L10.75 10H1.25z", fill: "currentColor" }),
  workload: () => s("rect", { x: 2.25, y: 2.25, width: 7.5, height: 7.5, fill: "currentColor" }),
  caller: () => s("path", { d: "M6 1l5 5-5 5-5-5z", fill: "currentColor" }),
  ok: () => s("path", { d: "M2.25 6.4l2.6 2.6 5-5.9", stroke: "currentColor", "stroke-width": 1.7, fill: "none" }),
};
export const glyph = (name) => s("svg", { class: `glyph g-${name}`, viewBox: "0 0 12 12", width: 12, height: 12, "aria-hidden": "true" }, GLYPHS[name]());
export const state = (name, fault) => h("span", { cls: `state st-${name}${fault ? ` f-${fault}` : ""}` }, glyph(name), name);
export const fault = (name, { brief = false } = {}) => h("span", { cls: `fault f-${name}`, title: `fault: ${name}` }, glyph(name), h("span", { cls: brief ? "hide" : "" }, name));

const ICONS = {
  search: "M7 2.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9zM10.4 10.4l3.1 3.1", copy: "M5.5 5.5h7v7h-7zM3.5 10.5v-7h7", close: "M4 4l8 8M12 4l-8 8",
  caret: "M6 4l4 4-4 4", down: "M4 6l4 4 4-4", play: "M5 3.2v9.6l8-4.8z", pause: "M5 3.5v9M11 3.5v9", sun: "M8 5.2a2.8 2.8 0 1 0 0 5.6 2.8 2.8 0 0 0 0-5.6zM8 1.5v1.6M8 12.9v1.6M1.5 8h1.6M12.9 8h1.6M3.4 3.4l1.1 1.1M11.5 11.5l1.1 1.1M3.4 12.6l1.1-1.1M11.5 4.5l1.1-1.1",
  prev: "M11 4L6 8l5 4zM4.5 4v8", next: "M5 4l5 4-5 4zM11.5 4v8", folder: "M2 4.5h4l1.4 1.6H14v6.4H2z", file: "M4 2.5h5l3 3v8H4zM9 2.5v3h3", plus: "M8 3v10M3 8h10", minus: "M3 8h10",
  external: "M6.5 3.5h-3v9h9v-3M9 3h4v4M13 3L7.5 8.5", warn: "M8 2.5L14 13H2zM8 6.5v3M8 11.2v.6",
};
export const icon = (name) => s("svg", { class: "icon", viewBox: "0 0 16 16", width: 16, height: 16, "aria-hidden": "true" }, s("path", { d: ICONS[name], fill: "none", stroke: "currentColor", "stroke-width": 1.4, "stroke-linejoin": "round", "stroke-linecap": "round" }));

/** @param {string} label @param {{kind?: string, glyph?: string, onclick?: (e: any) => void, title?: string, disabled?: boolean, pressed?: boolean, key?: string}} [options] */
export function button(label, { kind = "", glyph: mark, onclick, title, disabled, pressed, key } = {}) {
  return h("button", { cls: `btn ${kind}`, type: "button", onclick, title, disabled, "aria-pressed": pressed === undefined ? null : String(pressed), "aria-label": label ? null : title },
    mark ? icon(mark) : null, label ? h("span", label) : null, key ? h("kbd", key) : null);
}
export const link = (label, href, cls = "") => h("a", { href, cls: `link ${cls}` }, label);
export function copyable(text, { label = "Copy" } = {}) {
  const said = h("span", label);
  const node = h("button", { cls: "btn quiet copy", type: "button", "aria-label": `${label || "Copy"}: ${text}` }, icon("copy"), said);
  node.addEventListener("click", async () => {
    try { await navigator.clipboard.writeText(text); said.textContent = "Copied"; } catch { said.textContent = "Not allowed"; }
    setTimeout(() => { said.textContent = label; }, 1500);
  });
  return node;
}
export const command = (text) => h("div.cmd", h("code", { tabindex: 0 }, h("span.prompt", { "aria-hidden": "true" }, "$ "), text), copyable(text));
export const segmented = (label, options, current, onpick) => h("div.seg", { role: "group", "aria-label": label },
  options.map(([value, text, extra]) => h("button", { type: "button", "aria-pressed": String(value === current), onclick: () => onpick(value) }, text, extra === undefined ? null : h("span.n", extra))));

/** Facts as a definition list: [name, value] pairs. */
export const facts = (pairs, cls = "", more = {}) => h("dl", { cls: `facts ${cls}`, ...more }, pairs.filter(Boolean).map(([name, value]) => h("div", h("dt", name), h("dd", value))));
/** @param {string|null} title @param {any} body @param {{actions?: any, note?: any, cls?: string}} [options] */
export const panel = (title, body, { actions, note, cls = "" } = {}) => h("section", { cls: `panel ${cls}` },
  title ? h("header.panel-head", h("h2", title), note ? h("span.note", note) : null, actions ? h("div.actions", actions) : null) : null, body);
export const empty = (title, text, extra) => h("div.empty", h("h2", title), h("p", text), extra);

const TITLES = { sandbox_not_found: "There is no such sandbox", sandbox_gone: "The sandbox has ended", sandbox_not_ready: "The sandbox is not ready yet", scope_missing: "Your key does not permit this", placement_unavailable: "The placement store does not answer", agent_unreachable: "The sandbox does not answer", no_answer: "Holdfast does not answer", file_not_found: "There is no such file" };
const RETRY_MS = 3000;
/** A problem document of the service, in words. What the infrastructure may have repaired meanwhile is tried again by itself, as long as the person is not about to. @param {import("./api.js").Problem} error @param {(() => void)|null} [onretry] @param {string} [title] */
export function problem(error, onretry, title) {
  const again = onretry && error.retryable;
  const node = h("div.problem", { role: "alert" }, h("h2", glyph(error.fault), title ?? TITLES[error.code] ?? "This could not be done"), h("p", safe(error.message)), error.hint ? h("p.hint", safe(error.hint)) : null,
    h("div.row", onretry ? button("Try again", { kind: "primary", onclick: onretry }) : null, again ? h("span.note", `Next attempt in ${RETRY_MS / 1000} s`) : null),
    h("p.meta", h("code", error.code), " · fault: ", error.fault, error.request ? [" · request ", h("code", error.request)] : null));
  if (again) setTimeout(() => { if (node.isConnected && !node.contains(document.activeElement)) onretry(); }, RETRY_MS);
  return node;
}
export const skeleton = (rows, cls = "") => h("div", { cls: `skeleton ${cls}`, "aria-hidden": "true" },
  Array.from({ length: rows }, (_, i) => h("div.sk-row", [18, 30, 24, 12].map((w, j) => h("i", { style: { width: `${w - (i * 7 + j * 5) % 9}%` } })))));
export const loading = (what, body) => h("div.loading", { "aria-busy": "true" }, h("p.note", `Loading ${what}`), body);

/** A modal question. `body` is nodes; `actions` are buttons, whose action keeps it open with false; Escape and Cancel close it; the focus returns. */
export function dialog(title, body, actions = []) {
  const node = h("dialog", { cls: "dialog", "aria-labelledby": "dlg-t" });
  const before = /** @type {HTMLElement|null} */ (document.activeElement), close = () => { node.close(); node.remove(); (before?.isConnected ? before : document.getElementById("main"))?.focus({ preventScroll: true }); };
  add(node, [h("header", h("h2", { id: "dlg-t" }, title), button("", { kind: "quiet", glyph: "close", title: "Close", onclick: close })), h("div.dialog-body", body)]);
  if (actions.length) add(node, h("footer", button("Cancel", { onclick: close }), actions.map(([label, kind, act]) => button(label, { kind, onclick: async () => { if (await act?.() !== false) close(); } }))));
  node.addEventListener("cancel", (e) => { e.preventDefault(); close(); });
  document.body.append(node);
  node.showModal();
  return node;
}
export function toast(text, undo) {
  const node = h("div.toast", h("span", text), undo ? button("Undo", { kind: "quiet", onclick: () => node.remove() }) : null);
  /** @type {HTMLElement} */ (document.getElementById("toasts")).append(node);
  setTimeout(() => node.remove(), 5000);
}
export function banner(kind, text, actions) {
  return h("div", { cls: `banner ${kind}` }, glyph({ info: "ok", stale: "leaving", down: "infrastructure" }[kind]), h("p", text), actions ? h("div.actions", actions) : null);
}
/** Tabs that are links: the address always names the tab. */
export const tabs = (label, list, current) => h("nav.tabs", { "aria-label": label }, list.map(([id, text, href, extra]) => h("a", { href, "aria-current": id === current ? "page" : null }, text, extra === undefined ? null : h("span.n", extra))));
export { replace };
