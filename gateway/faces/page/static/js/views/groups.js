// Groups: the sandboxes of a run, which end together when its client stops renewing their lease. Owns the table of groups and the view of one, with
// its lease and its results by label: a label that the client sets, such as the task, tells the rollouts of a run apart.
import { Problem, call, get, path } from "../api.js";
import { add, count, h, replace, safe, span } from "../dom.js";
import { splitBar } from "../charts.js";
import { button, dialog, empty, facts, glyph, link, loading, panel, problem, segmented, skeleton, toast } from "../parts.js";
import { isOrdinary, live } from "../live.js";

const SHOWN = 500;
const AGAIN_MS = 1000;
const FAULTS = ["infrastructure", "workload", "caller"];
const query = (text) => `#/sandboxes?q=${encodeURIComponent(text)}`;
const at = (name) => `#/groups/${encodeURIComponent(name)}`;

/** @typedef {{name: string, all: number, ready: number, pending: number, leaving: number, paused: number, failed: number, ended: number, infrastructure: number, workload: number, caller: number, running: number, first: number}} Sum */

/** Counts of sandboxes, by what `key` says of each; one without a key counts nowhere. @param {import("../live.js").Sandbox[]} all @param {(one: import("../live.js").Sandbox) => string} key @returns {Sum[]} */
export function sums(all, key) {
  /** @type {Map<string, Sum>} */
  const found = new Map();
  for (const one of all) {
    const name = key(one);
    if (!name) continue;
    let sum = found.get(name);
    if (!sum) { sum = { name, all: 0, ready: 0, pending: 0, leaving: 0, paused: 0, failed: 0, ended: 0, infrastructure: 0, workload: 0, caller: 0, running: 0, first: Infinity }; found.set(name, sum); }
    sum.all += 1;
    sum[one.status] += 1;
    if (one.command?.running && one.status !== "ended") sum.running += 1;
    if ((one.status === "failed" || one.status === "ended") && !isOrdinary(one) && FAULTS.includes(one.fault)) sum[one.fault] += 1;
    sum.first = Math.min(sum.first, one.created ?? Infinity);
  }
  return [...found.values()].sort((a, b) => (b.first === a.first ? b.all - a.all : b.first - a.first));
}
/** How the sandboxes of a row stand, as a bar. @param {Sum} sum */
const shares = (sum) => splitBar([{ cls: "s-alive", value: sum.ready + sum.leaving + sum.paused, title: `${sum.ready + sum.leaving + sum.paused} live` }, { cls: "s-pending", value: sum.pending, title: `${sum.pending} pending` }, { cls: "s-ended", value: sum.ended + sum.failed - sum.infrastructure - sum.workload - sum.caller, title: `${sum.ended + sum.failed - sum.infrastructure - sum.workload - sum.caller} ended without a fault` }, ...FAULTS.map((w) => ({ cls: `f-${w}`, value: sum[w], title: `${sum[w]} ended with the fault ${w}` }))], `${sum.all} sandboxes: ${sum.ready} ready, ${sum.pending} pending, ${sum.ended} ended, ${sum.failed} failed`);

/** @param {string} what @param {Sum[]} rows @param {(sum: Sum) => any} name @param {(sum: Sum) => string} filter */
const table = (what, rows, name, filter) => h("div.table-box", { tabindex: 0, role: "group", "aria-label": what }, h("table.table", h("thead", h("tr", [what, "Sandboxes", "Ready", "Pending", "Running a command", "Ended", "To exclude", "To score", "Share"].map((t, i) => h("th", { cls: ["", "num", "num", "num lg", "num lg", "num", "num", "num", "lg"][i], scope: "col" }, t)))),
  h("tbody", rows.slice(0, SHOWN).map((sum) => h("tr", h("td", name(sum)), h("td.num", count(sum.all)), h("td.num", count(sum.ready)), h("td.num.lg", count(sum.pending)), h("td.num.lg", count(sum.running)), h("td.num", count(sum.ended + sum.failed)),
    h("td.num", sum.infrastructure ? link(h("span.f-infrastructure", glyph("infrastructure"), " ", count(sum.infrastructure)), `${filter(sum)}%20fault%3Ainfrastructure`) : "0"), h("td.num", sum.workload ? link(h("span.f-workload", glyph("workload"), " ", count(sum.workload)), `${filter(sum)}%20fault%3Aworkload`) : "0"), h("td.lg.barcol", shares(sum)))))));
const NOTE = "To exclude: ends with the fault infrastructure. To score: ends with the fault workload. Of sandboxes that ended, the page counts those that it saw before, for an hour.";

export const groups = {
  title: "Groups",
  /** @param {HTMLElement} root @param {import("../main.js").Context} context */
  mount(root, { signal }) {
    const note = h("span.note"), body = h("div.stack");
    const draw = following(signal, () => {
      if (!live.loaded) { replace(body, live.problem ? problem(live.problem, () => live.list()) : loading("groups", skeleton(8))); return; }
      const found = sums(live.list_(), (one) => one.group), held = body.contains(document.activeElement) ? document.activeElement?.getAttribute("href") : null;
      replace(note, found.length ? `${count(found.length)} in the last hour, the youngest first` : "");
      replace(body, found.length ? [table("Group", found, (sum) => link(safe(sum.name), at(sum.name), "mono"), (sum) => query(`group:${sum.name}`)), h("p.note", NOTE)]
        : empty("No groups yet", "A group is the sandboxes of one run. They end together when the client of the run ends or stops renewing the lease.", h("div.cmd", h("code", { tabindex: 0 }, "with client.group(\"my-run\") as group: client.create_sandbox(\"host\", group=group)"))));
      if (held) /** @type {HTMLElement|undefined} */ ([...body.querySelectorAll("a")].find((a) => a.getAttribute("href") === held))?.focus();
    });
    add(root, [h("header.head", h("h1", "Groups"), note), body]);
    draw();
  },
};
/** Calls `draw` when sandboxes change, at most once a second. @param {AbortSignal} signal @param {() => void} draw */
function following(signal, draw) {
  let due = 0;
  const soon = () => { if (!due) due = window.setTimeout(() => { due = 0; if (!signal.aborted) draw(); }, AGAIN_MS); };
  live.addEventListener("change", soon, { signal });
  live.addEventListener("state", soon, { signal });
  signal.addEventListener("abort", () => clearTimeout(due));
  return draw;
}

export const group = {
  title: "Group",
  /** @param {HTMLElement} root @param {import("../main.js").Context} context */
  mount(root, { at: { id }, signal }) {
    const head = h("header.head"), strip = h("div"), tools = h("div.tools"), body = h("div.stack"), ui = { label: "" };
    /** @type {any} */
    let lease = null;
    let asked = 0;
    const members = () => live.list_().filter((one) => one.group === id);
    /** The lease changes with heartbeats, which are no events: it is read when the view opens and with a change, at most every ten seconds. */
    function readLease() {
      if (asked && performance.now() - asked < 10000) return;
      asked = performance.now();
      get(path(["groups", id]), signal).then((found) => { lease = found; draw(); }, (error) => { if (error instanceof Problem && error.code === "group_not_found") { lease = { status: "gone" }; draw(); } });
    }
    function end() {
      const alive = members().filter((one) => !["ended", "failed"].includes(one.status)).length;
      dialog(`End the group ${id}?`, h("p", `${alive === 1 ? "1 sandbox is" : `${count(alive)} sandboxes are`} deleted with everything in them. Its client gets the cause deleted. This cannot be undone.`), [[`Delete ${alive === 1 ? "1 sandbox" : `${count(alive)} sandboxes`}`, "danger fill", async () => {
        try { await call("DELETE", path(["groups", id])); toast("The group has ended"); asked = 0; readLease(); } catch (error) { if (error instanceof Problem) dialog("The group was not ended", problem(error)); }
      }]]);
    }
    const draw = following(signal, () => {
      if (!live.loaded) { replace(body, loading("the group", skeleton(8))); return; }
      readLease();
      const all = members(), sum = sums(all, () => id)[0], now = Date.now() / 1000, open = lease?.status === "open";
      replace(head, h("nav.crumb", { "aria-label": "Breadcrumb" }, link("Groups", "#/groups"), h("span", "/")), h("h1", safe(id, "span", "mono")), lease && lease.status !== "gone" ? h("span.tag", lease.status) : null, lease?.reason ? h("b", safe(lease.reason)) : null,
        h("div.actions", all.length ? h("a.btn", { href: query(`group:${id}`) }, "Show its sandboxes") : null, open && sum && sum.ended + sum.failed < sum.all ? button("End the group", { kind: "danger", onclick: end }) : null));
      if (!sum) { replace(strip); replace(tools); replace(body, empty("There is no such group", "It may belong to another owner, or it ended more than an hour ago.", h("div.row", h("a.btn", { href: "#/groups" }, "All groups")))); return; }
      replace(strip, facts([["Sandboxes", count(sum.all)], ["Ready", count(sum.ready)], ["Pending", count(sum.pending)], ["Ended", count(sum.ended + sum.failed)], ["To exclude", count(sum.infrastructure)], ["To score", count(sum.workload)], Number.isFinite(sum.first) ? ["Since the first create", span(Math.max(now - sum.first, 0))] : null,
        ["Lease", open && lease.expires_at ? `ends in ${span(Math.max(lease.expires_at - now, 0))}, renewed by its client` : open ? "not held by a client" : "ended"]], "strip-facts"));
      const names = [...new Set(all.flatMap((one) => Object.keys(one.labels)))].sort(), values = (name) => new Set(all.map((one) => one.labels[name])).size;
      if (!names.includes(ui.label)) ui.label = [...names].sort((a, b) => values(b) - values(a))[0] ?? "";
      const held = tools.contains(document.activeElement) ? [...tools.querySelectorAll("button")].indexOf(/** @type {any} */ (document.activeElement)) : -1;
      replace(tools, names.length > 1 ? segmented("By label", names.slice(0, 8).map((name) => [name, safe(name)]), ui.label, (name) => { ui.label = name; draw(); }) : null);
      if (held >= 0) tools.querySelectorAll("button")[held]?.focus();
      const runs = ui.label ? sums(all, (one) => one.labels[ui.label] ?? "") : [], lost = all.filter((one) => one.fault === "infrastructure" && ["ended", "failed"].includes(one.status));
      replace(body, runs.length ? table(safe(ui.label).textContent || "Label", runs, (one) => link(safe(one.name), query(`group:${id} label:${ui.label}=${one.name}`), "mono"), (one) => query(`group:${id} label:${ui.label}=${one.name}`)) : h("p.note", "The client set no labels. With one for each task, such as labels={\"task\": …}, this view shows the results of each."),
        lost.length ? panel("To exclude from training", h("ul.plain", lost.slice(0, SHOWN).map((one) => h("li", link(safe(one.id), `#/sandboxes/${encodeURIComponent(one.id)}/timeline`, "mono"), " ", h("b", safe(one.reason)), " ", h("span.note", safe(one.message))))), { note: `${count(lost.length)} ended by the infrastructure` }) : null, h("p.note", NOTE));
    });
    add(root, [head, strip, tools, body]);
    draw();
  },
};
