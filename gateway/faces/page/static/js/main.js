// Entry of the page: who is signed in, routes, top bar, theme, banners and the keys that work everywhere. Views are in views/, one file each.
import { session } from "./api.js";
import { h, s, replace, wall, span } from "./dom.js";
import { live } from "./live.js";
import { banner, button, dialog, glyph, toast } from "./parts.js";
import { overview } from "./views/overview.js";
import { sandboxes } from "./views/sandboxes.js";
import { sandbox } from "./views/sandbox.js";
import { recordings } from "./views/recordings.js";
import { replay } from "./views/replay.js";
import { group, groups } from "./views/groups.js";
import { images } from "./views/images.js";
import { keys } from "./views/keys.js";
import { doctor } from "./views/doctor.js";
import { signIn } from "./views/sign_in.js";
import { welcome } from "./views/welcome.js";

/** @typedef {{name: string, id: string, tab: string, query: string}} Place */
/** @typedef {{at: Place, who: any, signal: AbortSignal, go: (to: string) => void, keep: Map<string, any>}} Context */

const NAV = [["overview", "Overview", "o"], ["sandboxes", "Sandboxes", "s"], ["recordings", "Recordings", "r"], ["groups", "Groups", "g"], ["images", "Images", "i"], ["keys", "Keys", "k"], ["doctor", "Doctor", "d"]];
const VIEWS = { overview, sandboxes, recordings, groups, images, keys, doctor, welcome };
/** The second key of "g then o" follows the first within this time. Times of events are compared: how long the page took to handle them does not count. */
const CHORD_MS = 2000;
/** The views of one thing of those that a view lists. */
const ONE = { sandboxes: sandbox, recordings: replay, groups: group };
/** @param {string} id @returns {HTMLElement} */
const el = (id) => /** @type {HTMLElement} */ (document.getElementById(id));
const memory = {
  get: (name) => { try { return localStorage.getItem(name); } catch { return null; } },
  set: (name, value) => { try { localStorage.setItem(name, value); } catch { /* a private window */ } },
};
const app = { who: /** @type {any} */ (null), chord: -Infinity, keys: memory.get("keys") !== "off", keep: new Map(), gone: new AbortController(), shown: "" };

/** A part of the address; as it stands if it is not valid. @param {string} text */
const decode = (text) => { try { return decodeURIComponent(text); } catch { return text; } };
/** @returns {Place} */
function place() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?"), [name = "overview", id = "", tab = ""] = path.split("/"), params = new URLSearchParams(query);
  return { name: name || "overview", id: decode(id), tab: decode(tab), query: params.get("q") || "" };
}
const go = (to) => { location.hash = `#/${to}`; };

function theme(mode = memory.get("theme") || "system") {
  document.documentElement.dataset.theme = mode;
  memory.set("theme", mode);
}
function nextTheme() {
  const order = ["system", "light", "dark"];
  theme(order[(order.indexOf(document.documentElement.dataset.theme ?? "system") + 1) % 3]);
  top();
}
const logo = () => s("svg", { viewBox: "0 0 16 16", class: "logo", "aria-hidden": "true" }, s("path", { d: "M8 1.5v7M8 8.5c0 3-2.2 4.2-5.5 5.5M8 8.5c0 3 2.2 4.2 5.5 5.5M8 8.5v6" }));

function top() {
  const at = place(), nav = () => NAV.map(([id, name]) => h("a", { href: `#/${id}`, "aria-current": at.name === id ? "page" : null }, name));
  const link = { loading: ["pending", "Connecting"], live: ["ready", "Live"], stale: ["leaving", "Stale"], offline: ["failed", "Offline"] }[live.state];
  const brand = h("a.brand", { href: "#/overview", "aria-label": "Holdfast, overview" }, logo(), "Holdfast");
  if (!app.who) { replace(el("top"), brand); replace(el("bottom")); return; }
  const end = h("div.top-end", h("span", { cls: `link-state st-${link[0]}`, title: "Connection to the service: events arrive as they happen" }, glyph(link[0]), link[1]),
    h("span.who.lg", app.who.owner), button("", { kind: "quiet", glyph: "sun", title: `Theme: ${document.documentElement.dataset.theme}`, onclick: nextTheme }),
    h("button.btn.quiet.help", { type: "button", "aria-label": "Keyboard", title: "Keyboard (?)", onclick: help }, "?"), button("Sign out", { kind: "quiet", onclick: signOut }));
  const held = document.activeElement?.closest("#top") ? [...el("top").querySelectorAll("a, button")].indexOf(/** @type {Element} */ (document.activeElement)) : -1;
  replace(el("top"), brand, h("nav.nav", { "aria-label": "Views" }, nav()), end);
  if (held >= 0) /** @type {HTMLElement} */ ([...el("top").querySelectorAll("a, button")][held])?.focus();
  replace(el("bottom"), nav().filter((one) => one.getAttribute("href") !== "#/groups")); // six have room; Overview leads to groups
}
function banners() {
  const retry = button("Try now", { onclick: () => live.tryNow() }), back = live.reconnected;
  let shown = null;
  if (!app.who) shown = null;
  else if (live.state === "offline") shown = banner("down", `Holdfast does not answer since ${wall(live.since)}. Sandboxes and their commands continue. The page tries again by itself.`, retry);
  else if (live.state === "stale") shown = banner("stale", `The placement store does not answer. This page shows what was known at ${wall(live.since)}. Open sessions continue; creates are refused until it is back.`, retry);
  else if (back) shown = banner("info", `${back.of === "stale" ? "The placement store answers again" : "Gateway restarting: reconnected"} after ${span(back.took)}. ${back.gap ? "Some events may be missing; the list was read again." : "Nothing was lost."}`, button("Dismiss", { kind: "quiet", onclick: () => { live.reconnected = null; banners(); } }));
  replace(el("banners"), shown);
  el("main").classList.toggle("is-stale", live.state === "stale" || live.state === "offline");
  markStale();
}
/** While the service or its store is away: as of when the view is, and what is refused until it is back. Views draw their parts again, so this is repeated after them. */
function markStale() {
  const main = el("main"), away = live.state === "stale" || live.state === "offline", tag = main.querySelector(".as-of");
  if (!away) tag?.remove(); else if (!tag) main.querySelector(".head h1")?.after(h("span.tag.as-of", `as of ${wall(live.since)}`));
  for (const node of /** @type {NodeListOf<HTMLButtonElement>} */ (main.querySelectorAll(".head .actions button, .pullform button, .list-head > .btn, .bulk button.danger"))) {
    if (away && !node.disabled) { node.disabled = true; node.dataset.refused = node.title; node.title = "Refused until the service is back"; }
    if (!away && node.dataset.refused !== undefined) { node.disabled = false; node.title = node.dataset.refused; delete node.dataset.refused; }
  }
}
function draw() {
  app.gone.abort();
  app.gone = new AbortController();
  const at = place(), main = el("main");
  top();
  banners();
  if (!app.who) {
    document.title = "Sign in · Holdfast";
    main.className = "main v-sign-in";
    replace(main, signIn(at.name === "sign-in" ? at.id : "", (who) => { app.who = who; if (at.name === "sign-in") history.replaceState(null, "", "#/overview"); begin(); }));
    return;
  }
  const view = at.id && ONE[at.name] || VIEWS[at.name] || overview, name = view === sandbox ? "sandbox" : view === replay ? "replay" : VIEWS[at.name] ? at.name : "overview";
  document.title = `${at.id || view.title} · Holdfast`;
  main.className = `main v-${name}`;
  banners();
  replace(main);
  view.mount(main, { at, who: app.who, signal: app.gone.signal, go, keep: app.keep });
}
async function signOut() {
  try { await session.end(); } catch { /* the cookie ends by itself */ }
  location.reload();
}
function begin() {
  live.start(app.who.scopes, app.who.owner);
  draw();
}
async function start() {
  theme();
  const at = place();
  if (at.name !== "sign-in") { try { app.who = await session.read(); } catch { app.who = null; } }
  if (app.who) begin(); else draw();
}
const HELP = [["Everywhere", [["g then o s r g i k d", "go to Overview, Sandboxes, Recordings, Groups, Images, Keys, Doctor"], ["/", "filter or find"], ["?", "this list"], ["Esc", "close, or leave the field"]]], ["Lists", [["j k ↓ ↑", "next, previous row"], ["Enter", "open"], ["x  Shift x", "select, select a range"], ["d", "delete what is selected, after a question"], ["c", "create a sandbox"]]], ["Timeline", [["j k ↓ ↑", "next, previous command"], ["Enter  → ←", "open or close its output"], ["f", "next failure"], ["i", "compress idle time"], ["+ − 0", "zoom in, out, fit"]]], ["Replay", [["Space", "play or pause"], ["← →", "5 s back, forward"], ["[ ]", "previous, next command"], ["+ −", "faster, slower"], ["Home End", "beginning, end"]]], ["Terminal", [["Ctrl ]", "leave the terminal, as in the command line"]]]];
function help() {
  dialog("Keyboard", [h("div.keymap", HELP.map(([name, list]) => h("section", h("h3", name), h("dl.facts", /** @type {string[][]} */ (list).map(([k, text]) => h("div", h("dt", k.split(/\s+/).map((x) => (x === "then" ? " then " : h("kbd", x)))), h("dd", text))))))), h("label.check", h("input", { type: "checkbox", checked: app.keys, onchange: (e) => { app.keys = e.target.checked; memory.set("keys", app.keys ? "on" : "off"); } }), "Use single keys as shortcuts")]);
}
document.addEventListener("keydown", (e) => {
  const target = /** @type {HTMLInputElement} */ (e.target), typing = target.matches("input, textarea, select, [role=textbox]");
  if (target.closest(".xterm")) return;
  if (e.key === "Escape" && typing && target.type !== "checkbox") { target.blur(); return; }
  if (!app.who || typing || e.metaKey || e.ctrlKey || e.altKey || document.querySelector("dialog[open]")) return;
  if (e.key === "?") { help(); return; }
  if (!app.keys) { e.stopPropagation(); return; }
  const second = e.timeStamp - app.chord < CHORD_MS;
  app.chord = -Infinity;
  if (second) {
    const hit = NAV.find((one) => one[2] === e.key);
    if (hit) { e.preventDefault(); e.stopPropagation(); go(hit[0]); }
  } else if (e.key === "g") {
    app.chord = e.timeStamp;
  } else if (e.key === "/") {
    const field = /** @type {HTMLElement|null} */ (document.querySelector("#filter, .tl input, .pullform input, .player input"));
    if (field) { e.preventDefault(); field.focus(); }
  }
}, true);
addEventListener("hashchange", () => { draw(); el("main").focus({ preventScroll: true }); scrollTo(0, 0); });
document.addEventListener("signed-out", () => { if (app.who) { app.who = null; draw(); toast("The session has ended. Sign in again."); } });
document.addEventListener("problem", (e) => live.refused(/** @type {CustomEvent} */ (e).detail));
live.addEventListener("state", () => { top(); banners(); });
live.addEventListener("change", () => { if (live.state !== "live") setTimeout(markStale); });
start();
