// Checks of this deployment, each with its remedy; problems first. And which modules of others this page has.
import { Problem, get } from "../api.js";
import { add, h, replace, safe, wall } from "../dom.js";
import { button, command, empty, glyph, loading, panel, problem, skeleton, toast } from "../parts.js";
import { vendored } from "../vendor.js";

export const doctor = {
  title: "Doctor",
  /** @param {HTMLElement} root @param {import("../main.js").Context} context */
  mount(root, { signal, who }) {
    const note = h("span.note"), body = h("div.stack");
    let report = "";
    async function check() {
      const late = setTimeout(() => replace(body, loading("checks", skeleton(14))), 300);
      try {
        const { checks } = await get("/doctor", signal);
        show(checks);
      } catch (error) {
        if (error instanceof Problem) replace(body, problem(error, check, "The checks could not run"));
      } finally { clearTimeout(late); }
    }
    /** @param {{name: string, ok: boolean, detail: string, fix: string, required?: boolean}[]} checks */
    function show(checks) {
      const bad = checks.filter((c) => !c.ok), good = checks.filter((c) => c.ok), required = (c) => c.required !== false;
      replace(note, `${bad.filter(required).length} ${bad.filter(required).length === 1 ? "problem" : "problems"}, ${bad.filter((c) => !required(c)).length} advice, ${good.length} in order · checked at ${wall(Date.now() / 1000)}`);
      report = checks.map((c) => `${c.ok ? "ok     " : "problem"} ${c.name}: ${c.detail}${c.fix ? ` (${c.fix})` : ""}`).join("\n");
      replace(body, checks.length ? [
        h("div.checks", bad.map((c) => h("section", { cls: `check f-${required(c) ? "infrastructure" : "workload"}` }, glyph(required(c) ? "failed" : "leaving"), h("div", h("h2", safe(c.name), h("span.tag", required(c) ? "required" : "optional")), h("p", safe(c.detail)), c.fix ? h("p.fix", h("b", "Remedy: "), safe(c.fix)) : null)))),
        panel("In order", h("table.table", h("caption.hide", "Checks that pass"), h("tbody", good.map((c) => h("tr", h("td", h("span.state.st-ready", glyph("ok")), " ", h("b", safe(c.name))), h("td.note", safe(c.detail)))))), { note: `${good.length} checks` }),
        modules(), h("div.grid2", panel("You", h("dl.facts", [["Owner", who.owner], ["Key", who.key_id], ["Scopes", who.scopes.join(", ")], ["Session ends", `${wall(who.expires_at)} UTC, renewed while this page is used`]].map(([a, b]) => h("div", h("dt", a), h("dd", safe(b))))))),
      ] : empty("The runtime has no checks of its own", "The gateway's own parts answer.", command("holdfast doctor")));
    }
    function modules() {
      const list = h("div", h("p.note", "Loading"));
      vendored().then((found) => replace(list, found.length ? h("table.table", h("thead", h("tr", ["Module", "Version", "Licence"].map((t) => h("th", { scope: "col" }, t)))), h("tbody", found.map((one) => h("tr", h("td", h("b", one.name)), h("td.num", one.version), h("td", one.license))))) : h("p.pad", "This build has none, so there is no terminal. Build with npm on the machine: make setup, or make wheels.")));
      return panel("Modules of others in this page", list);
    }
    add(root, [h("header.head", h("h1", "Doctor"), note, h("div.actions", button("Copy report", { glyph: "copy", onclick: () => navigator.clipboard?.writeText(report) }), button("Check again", { onclick: async () => { await check(); toast("All checks ran"); } }))), body]);
    check();
  },
};
