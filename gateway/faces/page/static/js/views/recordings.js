// The recordings of the owner's sandboxes, the latest first, also of those that are gone. views/replay.js shows one.
import { Problem, get } from "../api.js";
import { add, age, bytes, clock, count, h, replace, safe, shortImage, wall } from "../dom.js";
import { button, command, empty, fault, icon, link, loading, problem, skeleton } from "../parts.js";
import { isOrdinary, live } from "../live.js";

const SHOWN = 200;
const AGAIN_MS = 1500;

export const recordings = {
  title: "Recordings",
  /** @param {HTMLElement} root @param {import("../main.js").Context} context */
  mount(root, { signal, go }) {
    const note = h("span.note"), body = h("div"), search = /** @type {HTMLInputElement} */ (h("input.field", { id: "filter", type: "search", placeholder: "Find", title: "By sandbox, image, group or label", "aria-label": "Find a recording" }));
    /** @type {any[]} */
    let found = [];
    let most = SHOWN, due = 0, loaded = false;
    async function read() {
      try {
        found = (await get("/recordings", signal)).recordings;
        loaded = true;
        draw();
      } catch (error) {
        if (!(error instanceof Problem) || loaded) return;
        if (error.code === "unsupported") replace(body, empty("This service keeps no recordings", "An administrator sets HOLDFAST_RECORDINGS to a folder or an object store."));
        else replace(body, problem(error, read, "The recordings could not be read"));
      }
    }
    /** @param {any} one @param {number} now */
    function row(one, now) {
      const href = `#/recordings/${encodeURIComponent(one.recording_id)}`, over = one.ended_at !== null;
      return h("tr", { onclick: (e) => { if (!e.target.closest("a")) go(href.slice(2)); } }, h("td", link(safe(one.sandbox_id), href, "mono")), h("td.lg.mono", { title: one.image ?? "" }, safe(shortImage(one.image ?? ""))), h("td.lg", one.group ? safe(one.group) : h("span.dash", "–")),
        h("td.num.lg", clock(Math.max((one.ended_at ?? now) - one.started_at, 0))), h("td.num.lg", one.commands === undefined || one.commands === null ? h("span.dash", "–") : count(one.commands)), h("td.num.lg", bytes(one.bytes)),
        h("td.num", over ? h("span", { title: wall(one.ended_at) }, `${age(Math.max(now - one.ended_at, 0))} ago`) : "lives"), h("td", over ? h("span.cause", isOrdinary(one) || !one.fault ? null : fault(one.fault), h("b", safe(one.reason ?? "end unknown"))) : h("span.note", "recording")));
    }
    function draw() {
      const now = Date.now() / 1000, wanted = search.value.trim().toLowerCase(), shown = found.filter((one) => !wanted || JSON.stringify([one.sandbox_id, one.image, one.group, one.labels]).toLowerCase().includes(wanted));
      replace(note, found.length ? `${count(found.length)} kept · ${bytes(found.reduce((sum, one) => sum + one.bytes, 0))}` : "");
      if (!found.length) { replace(body, empty("No recordings yet", "Create a sandbox with record=True, or with the option --record. Its recording stays after the sandbox ended.", command("holdfast run --record host python3 -c 'print(6 * 7)'"))); return; }
      const held = body.contains(document.activeElement) ? document.activeElement?.getAttribute("href") : null;
      replace(body, h("div.table-box", { tabindex: 0, role: "group", "aria-label": "Recordings" }, h("table.table.opens", h("thead", h("tr", ["Sandbox", "Image", "Group", "Length", "Commands", "Size", "Ended", "Cause of end"].map((t, i) => h("th", { cls: ["", "lg", "lg", "num lg", "num lg", "num lg", "num", ""][i], scope: "col" }, t)))), h("tbody", shown.slice(0, most).map((one) => row(one, now))))),
        shown.length ? null : h("p.pad.note", "No recording matches."), shown.length > most ? button(`Show ${count(Math.min(shown.length - most, SHOWN))} more`, { onclick: () => { most += SHOWN; draw(); } }) : null);
      if (held) /** @type {HTMLElement|undefined} */ ([...body.querySelectorAll("a")].find((a) => a.getAttribute("href") === held))?.focus();
    }
    const soon = () => { if (!due) due = window.setTimeout(() => { due = 0; read(); }, AGAIN_MS); };
    live.addEventListener("event", (e) => { if (["ready", "deleted"].includes(/** @type {CustomEvent} */ (e).detail.name)) soon(); }, { signal });
    live.addEventListener("state", () => { if (live.state === "live") soon(); }, { signal });
    signal.addEventListener("abort", () => clearTimeout(due));
    search.addEventListener("input", draw);
    add(root, [h("header.head", h("h1", "Recordings"), note, h("div.actions", h("label.find", icon("search"), search, h("kbd", "/")))), body]);
    replace(body, loading("recordings", skeleton(14)));
    read();
  },
};
