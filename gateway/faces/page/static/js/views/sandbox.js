// One sandbox: its header with facts, its tabs, and what each says when the sandbox is not there. Each tab is a file of its own.
import { Problem, call, get, path } from "../api.js";
import { add, h, replace, safe, span, wall, bytes } from "../dom.js";
import { spark } from "../charts.js";
import { button, copyable, dialog, empty, facts, fault, glyph, icon, link, loading, skeleton, state, tabs, toast } from "../parts.js";
import { Episode } from "../episode.js";
import { isOrdinary, live } from "../live.js";
import { cores, quantity } from "../quantities.js";
import { details } from "./details.js";
import { files } from "./files.js";
import { network } from "./network.js";
import { ports } from "./ports.js";
import { recording } from "./recording.js";
import { exporting } from "./replay.js";
import { terminal } from "./terminal.js";
import { timeline } from "./timeline.js";

const TABS = ["timeline", "terminal", "files", "ports", "network", "recording", "details"];
/** Tabs that show a sandbox that has ended, too. */
const LASTING = ["timeline", "recording", "details"];
const VIEWS = { timeline: (c) => timeline(c.episode, c.acts, c.signal), terminal, files, ports, network, recording, details };
/** What a tab without a sandbox says. @param {import("../live.js").Sandbox} one */
function gone(one, what) {
  if (one.status === "pending") return empty("Not ready yet", `It waits for its image, ${span(Math.max(Date.now() / 1000 - (one.created ?? Date.now() / 1000), 0))} so far. This tab opens as soon as it is ready.`);
  if (one.status === "failed") return empty(one.ready === null ? "It never became ready" : `${what} ended with the sandbox`, [safe(one.message ? `${one.message[0].toUpperCase()}${one.message.slice(1)}.` : ""), ` The cause is ${one.reason}, the fault ${one.fault}.`]);
  if (one.status === "paused") return empty("The sandbox is paused", "Resume it to open this tab: nothing runs in it now.");
  return empty(`${what} ended with the sandbox`, `It ended at ${one.ended ? wall(one.ended) : "–"} with the cause ${one.reason}.`, h("div.row", h("a.btn", { href: `#/sandboxes/${encodeURIComponent(one.id)}/timeline` }, "Open the timeline")));
}
const WHAT = { terminal: "The terminal", files: "The files", ports: "The ports", network: "The network", recording: "The recording" };

export const sandbox = {
  title: "Sandbox",
  /** @param {HTMLElement} root @param {import("../main.js").Context} context */
  mount(root, { at, who, signal, go, keep }) {
    const { id } = at, tab = TABS.includes(at.tab) ? at.tab : "timeline", here = `#/sandboxes/${encodeURIComponent(id)}`;
    const head = h("header.head"), strip = h("div"), notice = h("div"), bar = h("div"), body = h("div.tab-body"), inside = new AbortController();
    signal.addEventListener("abort", () => inside.abort());
    /** @type {Episode|null} */
    let episode = null;
    let opened = "", asked = false;
    const one = () => live.all.get(id);
    async function extend() {
      try { live.record(await call("PUT", path(["sandboxes", id, "lifetime"]), { extend_s: 3600 })); live.changed("list"); toast("The sandbox ends 1 h later"); } catch (error) { refused(error); }
    }
    function refused(error) { if (error instanceof Problem) dialog("This was refused", [h("p", safe(error.message)), h("p.note", safe(error.hint))]); }
    function remove() {
      const running = episode?.commands.filter((c) => c.running).length ?? 0;
      dialog(`Delete ${id}?`, h("p", `${running ? `${running === 1 ? "1 command is" : `${running} commands are`} running and will end. ` : ""}The files of the sandbox are lost. This cannot be undone.`), [["Delete sandbox", "danger fill", async () => { try { await call("DELETE", path(["sandboxes", id])); toast("The sandbox is deleted"); } catch (error) { refused(error); } }]]);
    }
    async function resume() { try { live.record(await call("POST", path(["sandboxes", id, "resume"]), {})); live.changed("list"); } catch (error) { refused(error); } }
    const acts = { extend, remove, go };

    function drawHead() {
      const sb = one(), alive = sb && (sb.status === "ready" || sb.status === "leaving" || sb.status === "paused"), crumb = h("nav.crumb", { "aria-label": "Breadcrumb" }, link("Sandboxes", "#/sandboxes"), h("span", "/")), title = h("h1", safe(id, "span", "mono"));
      if (!sb) { replace(head, crumb, title); replace(strip); replace(bar); return; }
      const recorded = sb.status === "ended" || sb.status === "failed" ? episode?.recordingId || sb.record?.recording || "" : "";
      const held = head.contains(document.activeElement) ? [...head.querySelectorAll("button, a")].indexOf(/** @type {Element} */ (document.activeElement)) : -1;
      replace(head, crumb, title, state(sb.status, sb.status === "failed" ? sb.fault : ""), sb.reason ? h("span.cause", isOrdinary(sb) ? null : fault(sb.fault), h("b", safe(sb.reason))) : null, copyable(id, { label: "Copy id" }),
        h("div.actions", sb.status === "paused" ? button("Resume", { kind: "primary", onclick: resume }) : null, sb.status === "ready" && sb.expires !== null ? button("Extend by 1 h", { onclick: extend }) : null, alive || sb.status === "pending" ? button("Delete", { kind: "danger", onclick: remove }) : null,
          recorded ? [h("a.btn.primary", { href: `#/recordings/${encodeURIComponent(recorded)}` }, icon("play"), h("span", "Replay")), button("Export", { glyph: "down", onclick: () => exporting(recorded, id) })] : null));
      if (held >= 0) /** @type {HTMLElement|undefined} */ ([...head.querySelectorAll("button, a")][held])?.focus();
      drawFacts();
      const count = episode?.commands.length || undefined;
      replace(bar, tabs("Sandbox", TABS.map((t) => [t, t[0].toUpperCase() + t.slice(1), `${here}/${t}`, t === "timeline" ? count : t === "ports" && alive ? (sb.ports && new Set(sb.ports).size) || undefined : undefined]), tab));
      const tabsBar = /** @type {HTMLElement|null} */ (bar.firstElementChild), open = /** @type {HTMLElement|null} */ (bar.querySelector("[aria-current]"));
      if (tabsBar && open) tabsBar.scrollLeft = Math.max(open.offsetLeft + open.offsetWidth - tabsBar.offsetLeft - tabsBar.clientWidth, 0); // in sight on a phone
      replace(notice, sb.status === "leaving" ? h("p.attention", glyph("infrastructure"), h("span", h("b", `This sandbox ends at ${wall(sb.expires ?? 0)}. `), safe(sb.message ? `${sb.message[0].toUpperCase()}${sb.message.slice(1)}. ` : ""), "Commands that end before are reported; new ones are refused. Exclude this rollout from training.")) : null);
    }
    function drawFacts() {
      const sb = one(), now = Date.now() / 1000;
      if (!sb) return;
      const use = (series, limit, text, otherwise, name) => (series ? h("span.use", spark(series, limit, { width: 72, height: 16, label: name }), h("span.num", text)) : h("span.num", otherwise)), alive = sb.status === "ready" || sb.status === "leaving" || sb.status === "paused", born = sb.created ?? now;
      const scrolls = matchMedia("(max-width: 719px)").matches ? { tabindex: 0, role: "group", "aria-label": "Facts" } : {};
      replace(strip, h("div", scrolls, facts([["Image", sb.image ? safe(sb.image, "span", "mono") : h("span.dash", "–")], ["Owner", who.owner], ["Group", sb.group ? link(safe(sb.group), `#/sandboxes?q=${encodeURIComponent(`group:${sb.group}`)}`, "mono") : "none"], sb.ended || sb.created === null ? ["Lived", sb.created ? span(Math.max((sb.ended ?? now) - born, 0)) : h("span.dash", "–")] : ["Age", span(Math.max(now - born, 0))], sb.ready && sb.created ? ["Ready in", span(Math.max(sb.ready - sb.created, 0))] : null, alive && sb.expires ? ["Ends in", span(Math.max(sb.expires - now, 0))] : sb.ended ? ["Ended", wall(sb.ended)] : null,
        sb.cpu ? ["CPU", use(sb.cpuUse, cores(sb.cpu), `${(sb.cpuUse?.at(-1) ?? 0).toFixed(1)} of ${sb.cpu}`, `${sb.cpu} ${String(sb.cpu) === "1" ? "core" : "cores"}`, "CPU")] : null, sb.memory ? ["Memory", use(sb.memoryUse, quantity(sb.memory), `${bytes(sb.memoryUse?.at(-1) ?? 0)} of ${bytes(quantity(sb.memory))}`, bytes(quantity(sb.memory)), "Memory")] : null], "strip-facts", {})));
    }
    function drawBody() {
      const sb = one();
      let name = !live.loaded ? "loading" : !sb ? "missing" : `${tab} ${LASTING.includes(tab) && (tab !== "recording" || sb.status !== "pending") ? "open" : sb.status === "ready" || sb.status === "leaving" ? "open" : sb.status}`;
      if (!sb && live.loaded && !asked) { asked = true; get(path(["sandboxes", id])).then((record) => { live.record(record); live.changed("list"); }).catch(() => {}); }
      if (name === opened) return;
      opened = name;
      if (name === "loading") replace(body, loading("the sandbox", skeleton(8)));
      else if (!sb) replace(body, empty("There is no such sandbox", "It may belong to another owner, or it ended more than an hour ago.", h("div.row", h("a.btn", { href: "#/sandboxes" }, "All sandboxes"))));
      else if (!name.endsWith("open")) replace(body, gone(sb, WHAT[tab]));
      else {
        if (!episode) { episode = new Episode(id, inside.signal); episode.addEventListener("change", drawHead, { signal }); }
        replace(body, VIEWS[tab]({ id, episode, acts, who, signal: inside.signal, keep, here, sandbox: one }));
      }
    }
    const draw = () => { drawHead(); drawBody(); };
    live.addEventListener("change", draw, { signal });
    live.addEventListener("state", draw, { signal });
    const clock = setInterval(drawFacts, 1000);
    signal.addEventListener("abort", () => clearInterval(clock));
    add(root, [head, strip, notice, bar, body]);
    draw();
  },
};
