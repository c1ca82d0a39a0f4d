// The recording of one sandbox, in its tab: what is known of it, and the player of views/replay.js. Of a sandbox that has ended the recording is
// asked for by its id, because events do not name it.
import { Problem, get, path } from "../api.js";
import { bytes, clock, h, replace, safe, wall } from "../dom.js";
import { button, command, empty, facts, loading, problem, skeleton } from "../parts.js";
import { exporting, follow } from "./replay.js";

/** @param {{id: string, signal: AbortSignal, sandbox: () => any}} context */
export function recording({ id, signal, sandbox }) {
  const head = h("div.tools"), box = h("div"), root = h("section.stack", head, box);
  /** @param {string} recorded */
  function show(recorded) {
    follow({ id: recorded, sandbox: id, signal, from: "", box, onchange: (known) => replace(head,
      facts([["Recording", known.ended_at === null ? "on since the sandbox was created" : `complete since ${wall(known.ended_at)}`], ["Length", clock(known.shown.length)], ["Size", bytes(known.bytes)], ["Marked gaps", known.shown.marks.filter((m) => m.kind === "gap").length || "none"]], "inline"),
      h("span.grow"), h("a.btn", { href: `#/recordings/${encodeURIComponent(recorded)}` }, "Open alone"), button("Export", { glyph: "down", onclick: () => exporting(recorded, id) })) });
  }
  async function find() {
    const known = sandbox()?.record?.recording;
    if (known) { show(known); return; }
    replace(box, loading("the recording", skeleton(8)));
    try {
      const found = sandbox()?.record ? [] : (await get(path(["recordings"], { sandbox: id }), signal)).recordings;
      if (found.length) show(found[0].recording_id);
      else replace(box, empty("This sandbox is not recorded", ["Create one with ", h("code", "record=True"), ", or with the option ", h("code", "--record"), ". Its commands and their outputs can then be replayed after it ended."], command(`holdfast run -d --record ${safe(sandbox()?.image || "host").textContent}`)));
    } catch (error) { if (error instanceof Problem) replace(box, problem(error, find, "The recording could not be found")); }
  }
  find();
  return root;
}
