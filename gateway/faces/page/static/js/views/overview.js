// The state of the owner's sandboxes in one screen: counts, rates, faults, capacity, groups.
import { Problem, get } from "../api.js";
import { add, h, count, replace, safe, span, bytes } from "../dom.js";
import { lineChart, stackedColumns, splitBar, meter } from "../charts.js";
import { fault, glyph, link, loading, panel, problem, skeleton } from "../parts.js";
import { creates, faults, rate, ticks } from "../hour.js";
import { live } from "../live.js";
import { held } from "./limits.js";

const FAULTS = ["infrastructure", "workload", "caller"];
const AGAIN_MS = 1000;
const query = (text) => `#/sandboxes?q=${encodeURIComponent(text)}`;
const none = (text) => h("p.pad.note", text);
/** A chart, or a line that says why there is none. */
function chart(options, values) {
  return values.some((v) => Number.isFinite(v) && v > 0) ? lineChart(options) : h("figure.chart", h("figcaption", h("h2", options.title), h("span.note", options.unit)), h("p.note", options.none));
}

export const overview = {
  title: "Overview",
  /** @param {HTMLElement} root @param {import("../main.js").Context} context */
  mount(root, { signal, go }) {
    const body = h("div.stack"), head = h("header.head", h("h1", "Overview"), h("span.note", "last hour, your sandboxes"));
    /** @type {any} */
    let resources = null;
    /** The limits that hold for this person, as nodes; null if there is none. */
    let limits = /** @type {any} */ (null);
    let due = 0;
    function counts(all, now) {
      const of = (name) => all.filter((one) => one.status === name), pending = of("pending"), oldest = Math.max(...pending.map((one) => now - (one.created ?? now)), 0), leaving = of("leaving"), running = all.filter((one) => one.command?.running && (one.status === "ready" || one.status === "leaving")).length;
      const cells = [["ready", of("ready").length + of("paused").length, of("paused").length ? `${count(of("paused").length)} paused` : running ? `${count(running)} run a command now` : "–"], ["pending", pending.length, pending.length ? `oldest waits ${span(oldest)}` : "none waits"], ["leaving", leaving.length, leaving.length ? "they end soon" : "none ends early"], ["failed", of("failed").length, "ended by a fault"], ["ended", of("ended").length, "in the last hour"]];
      return h("section.counts", { "aria-label": "Sandboxes by state" }, cells.map(([name, value, note]) => h("a", { cls: `cell st-${name}`, href: query(`state:${name}`) }, h("span.name", glyph(name), name[0].toUpperCase() + name.slice(1)), h("b", count(value)), h("span.note", note))));
    }
    function charts(all, now) {
      const made = creates(all, now), commands = rate(live.commands, now, live.opened), ms = (v) => `${v < 10 ? v.toFixed(1) : count(Math.round(v))} ms`;
      const unknown = all.some((one) => one.status === "ended" && one.ready === null), none = unknown ? "When sandboxes became ready that ended before this page was opened is not known." : "No sandbox became ready in the last hour.";
      return h("div.grid3",
        panel(null, chart({ title: "Creates", unit: "a minute", ticks: ticks(now), series: [{ name: "became ready", values: made.counts, cls: "one" }], format: (v) => count(Math.round(v)), none }, made.counts)),
        panel(null, chart({ title: "Ready time", unit: "ms, log scale", log: true, axis: (v) => count(v), ticks: ticks(now), series: [{ name: "p50", values: made.p50, cls: "one" }, { name: "p99", values: made.p99, cls: "two" }], format: ms, none }, made.p50)),
        panel(null, chart({ title: "Commands", unit: "a second", ticks: ticks(now), series: [{ name: "started", values: commands, cls: "one" }], format: (v) => (v < 10 ? v.toFixed(1) : count(Math.round(v))), none: "No command started since this page was opened." }, commands)));
    }
    function causes(all, now) {
      const found = faults(all, now), total = (whose) => found.causes.filter((c) => c.fault === whose).reduce((sum, c) => sum + c.times, 0), sum = FAULTS.reduce((n, w) => n + total(w), 0), most = Math.max(...found.causes.map((c) => c.times), 1);
      if (!sum) return panel("Faults", none("Nothing failed in the last hour. Ends that an owner asked for are not counted."), { note: "0 in the last hour" });
      return panel("Faults", [
        h("div.fault-sum", FAULTS.map((w) => h("a", { href: query(`fault:${w}`), cls: `key f-${w}` }, glyph(w), w, " ", h("b", count(total(w)))))),
        splitBar(FAULTS.flatMap((w) => found.causes.filter((c) => c.fault === w).map((c) => ({ cls: `f-${w}`, value: c.times, title: `${c.reason} (${w}): ${c.times}` }))), `${sum} faults: ${FAULTS.map((w) => `${total(w)} ${w}`).join(", ")}`),
        stackedColumns({ columns: found.columns, order: ["caller", "workload", "infrastructure"], label: `Faults in each two minutes of the last hour: ${sum} in all` }), h("div.x", ticks(now).map((t) => h("span", t))),
        h("table.table.causes", h("caption.hide", "Causes"), h("thead", h("tr", h("th", { scope: "col" }, "Cause"), h("th", { scope: "col" }, "Fault"), h("th.num", { scope: "col" }, "Count"), h("th.barcol", h("span.hide", "Share")), h("th.lg", { scope: "col" }, "Most recent"))),
          h("tbody", found.causes.map((c) => h("tr", h("td", link(safe(c.reason), query(`cause:${c.reason} fault:${c.fault}`))), h("td", fault(c.fault)), h("td.num", count(c.times)), h("td.barcol", h("i", { cls: `f-${c.fault}`, style: { width: `${c.times / most * 100}%` } })), h("td.lg.note", safe(c.last.message))))))],
      { note: `${count(sum)} in the last hour` });
    }
    function capacity() {
      if (!resources) return panel("Capacity", none("–"), { note: "now" });
      const total = resources.total_capacity ?? {}, asked = resources.total_requested ?? {}, runtime = resources.runtime ?? {}, disk = runtime.disk_free + (runtime.disk_promised ?? 0);
      const used = (name, a, b, format, note, calm) => (Number.isFinite(a) && Number.isFinite(b) && b > 0 ? meter(name, a, b, format, note, calm) : null), round = (v) => (v < 10 ? String(Math.round(v * 10) / 10) : count(Math.round(v)));
      const over = asked.cpu > total.cpu ? "sandboxes may use more than there is, if they do not all work at once" : null;
      return [panel("Capacity", h("div.meters", used("CPU requested", asked.cpu, total.cpu, round, over, asked.cpu > total.cpu), used("Memory requested", asked.memory_bytes, total.memory_bytes, bytes), used("Disk promised", runtime.disk_promised, disk, bytes)), { note: "of this service, now" }),
        Number.isFinite(runtime.spares) ? panel("Spares", h("dl.facts", [["Ready", count(runtime.spares)], ["Wanted", count(runtime.spares_wanted ?? 0)], ["Most", count(runtime.spares_most ?? 0)]].map(([name, value]) => h("div", h("dt", name), h("dd.num", value)))), { note: "sandboxes that are made in advance" }) : null];
    }
    function groups(all) {
      /** @type {Map<string, {ready: number, all: number, work: number, infra: number}>} */
      const found = new Map();
      for (const one of all) {
        if (!one.group) continue;
        const group = found.get(one.group) ?? { ready: 0, all: 0, work: 0, infra: 0 };
        group.all += 1;
        if (one.status === "ready" || one.status === "leaving") group.ready += 1;
        if (one.status === "failed" || one.status === "ended") { if (one.fault === "workload") group.work += 1; if (one.fault === "infrastructure") group.infra += 1; }
        found.set(one.group, group);
      }
      if (!found.size) return null;
      return panel("Groups", h("table.table", h("thead", h("tr", ["Group", "Ready", "Faults of the workload", "Faults to exclude"].map((t, i) => h("th", { cls: ["", "num", "num lg", "num"][i], scope: "col" }, t)))),
        h("tbody", [...found].sort((a, b) => b[1].all - a[1].all).slice(0, 20).map(([name, g]) => h("tr", h("td", link(safe(name), `#/groups/${encodeURIComponent(name)}`, "mono")), h("td.num", `${count(g.ready)} of ${count(g.all)}`), h("td.num.lg", count(g.work)), h("td.num", g.infra ? link(h("span.f-infrastructure", count(g.infra)), query(`group:${name} fault:infrastructure`)) : "0"))))), { note: "a group ends when its client stops renewing the lease", actions: link("All groups", "#/groups") });
    }
    function attention(all) {
      const lost = all.filter((one) => one.fault === "infrastructure" && (one.status === "ended" || one.status === "failed" || one.status === "leaving"));
      return lost.length ? h("p.attention", glyph("infrastructure"), h("span", h("b", `The infrastructure ended ${count(lost.length)} ${lost.length === 1 ? "sandbox" : "sandboxes"} in the last hour. `), "Exclude these rollouts from training. ", link("Show them", query("fault:infrastructure")))) : null;
    }
    function draw() {
      due = 0;
      if (signal.aborted) return;
      if (!live.loaded) { replace(body, live.problem ? problem(live.problem, () => live.list()) : loading("the last hour", skeleton(6))); return; }
      if (!live.all.size && !draws) { go("welcome"); return; }
      draws += 1;
      const all = live.list_(), now = Date.now() / 1000, held = body.contains(document.activeElement) ? /** @type {HTMLElement} */ (document.activeElement).getAttribute("href") : null;
      replace(body, attention(all), counts(all, now), charts(all, now), h("div.grid21", causes(all, now), h("div.stack", capacity(), limits ? panel("Your limits", limits, { note: "used now" }) : null)), groups(all));
      if (held) /** @type {HTMLElement|null} */ (body.querySelector(`[href="${CSS.escape(held).replaceAll("\\#", "#")}"]`))?.focus({ preventScroll: true });
    }
    let draws = 0;
    const soon = () => { if (!due) due = window.setTimeout(draw, draws ? AGAIN_MS : 0); };
    live.addEventListener("change", soon, { signal });
    live.addEventListener("state", soon, { signal });
    const clock = setInterval(soon, 15000);
    signal.addEventListener("abort", () => { clearInterval(clock); clearTimeout(due); });
    let read = 0;
    /** The capacity changes with the sandboxes: it is read again after a change, at most every ten seconds. */
    const capacityAgain = () => { if (performance.now() - read > 10000 || !read) { read = performance.now() || 1; held(signal, (nodes, found) => { limits = found.length ? nodes : null; soon(); }); get("/resources", signal).then((found) => { resources = found; soon(); }, (error) => { if (error instanceof Problem) soon(); }); } };
    live.addEventListener("change", capacityAgain, { signal });
    capacityAgain();
    add(root, [head, body]);
    draw();
  },
};
