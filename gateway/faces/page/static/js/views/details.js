// Everything else that is known of a sandbox: what was requested, where it is, when it ends, its labels, and the danger zone.
import { h, replace, safe, span, wall, day, bytes } from "../dom.js";
import { button, facts, panel } from "../parts.js";
import { live } from "../live.js";
import { quantity } from "../quantities.js";

const dash = () => h("span.dash", "–");
const moment = (at) => (at ? `${day(at)} ${wall(at)} UTC` : dash());

/** @param {{id: string, acts: {remove: () => void}, episode: import("../episode.js").Episode, signal: AbortSignal, who: any, sandbox: () => any}} context */
export function details({ acts, episode, signal, who, sandbox }) {
  const root = h("div.stack");
  let drawn = "";
  function draw() {
    const one = sandbox(), record = one?.record ?? {}, options = record.options ?? {}, sign = JSON.stringify([record, one?.status, episode.commands.length]);
    if (!one || sign === drawn) return;
    drawn = sign;
    const labels = Object.entries(one.labels), shells = new Set(episode.commands.filter((c) => c.where.startsWith("shell")).map((c) => c.where)), running = episode.commands.filter((c) => c.running).length;
    replace(root, h("div.grid2",
      panel("Request", facts([["Image", one.image ? safe(one.image, "code") : dash()], ["CPU", one.cpu ? `${one.cpu} ${String(one.cpu) === "1" ? "core" : "cores"}` : dash()], ["Memory", one.memory ? bytes(quantity(one.memory)) : dash()], ["Network", record.network?.mode ?? dash()], ...Object.entries(options).slice(0, 12).map(([name, value]) => [safe(name.replaceAll("_", " ")), safe(typeof value === "string" ? value : JSON.stringify(value), "code")])])),
      panel("Placement", facts([["Owner", who.owner], ["Group", one.group ? safe(one.group) : "none"], ["Namespace", record.namespace ? safe(record.namespace) : dash()], ["Incarnation", record.incarnation ? h("code", record.incarnation) : dash()], ["Branch of", record.parent ? safe(record.parent) : "none"], ["Queued", record.queued_s === undefined ? dash() : span(record.queued_s)], ["Became ready in", one.ready && one.created ? span(Math.max(one.ready - one.created, 0)) : dash()]])),
      panel("Limits and ends", facts([["Created", moment(one.created)], ["Ready", moment(one.ready)], ["Ends", one.ended ? `ended ${wall(one.ended)} UTC` : one.expires ? moment(one.expires) : "when it is deleted"], ["Lifetime", record.lifetime_s ? span(record.lifetime_s) : "no limit"], ["Cause", one.reason ? [safe(one.reason), one.fault ? `, fault: ${one.fault}` : ""] : dash()]])),
      panel("Commands", facts([["Shells", shells.size || dash()], ["Commands", `${episode.commands.length} known, ${running || "none"} running`], ["Where this comes from", "the sandbox itself: it is its claim"]])),
      panel("Labels", labels.length ? facts(labels.map(([name, value]) => [safe(name), safe(value, "code")])) : h("p.pad.note", "The client set no labels."), { note: "written by the client" }),
      one.status === "ended" || one.status === "failed" ? null : panel("Danger zone", h("div.pad", h("p", "Delete the sandbox now. Its commands end and its files are lost."), button("Delete sandbox", { kind: "danger", onclick: acts.remove })), { cls: "danger-zone" })));
  }
  live.addEventListener("change", draw, { signal });
  episode.addEventListener("change", draw, { signal });
  draw();
  return root;
}
