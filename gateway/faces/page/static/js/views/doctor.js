// Checks of this deployment, each with its remedy, problems first; its settings, the limits of this person, and the modules of others in this page.
import { Problem, get } from "../api.js";
import { add, bytes, h, replace, safe, span, wall } from "../dom.js";
import { button, command, empty, facts, glyph, loading, panel, problem, skeleton, toast } from "../parts.js";
import { quantity } from "../quantities.js";
import { vendored } from "../vendor.js";
import { held } from "./limits.js";

const dash = () => h("span.dash", "–");

export const doctor = {
  title: "Doctor",
  /** @param {HTMLElement} root @param {import("../main.js").Context} context */
  mount(root, { signal, who }) {
    const note = h("span.note"), body = h("div.stack");
    let report = "";
    async function check() {
      const late = setTimeout(() => replace(body, loading("checks", skeleton(14))), 300);
      try {
        const [{ checks, version }, resources] = await Promise.all([get("/doctor", signal), get("/resources", signal).catch(() => null)]);
        show(checks, version, resources);
      } catch (error) {
        if (error instanceof Problem) replace(body, problem(error, check, "The checks could not run"));
      } finally { clearTimeout(late); }
    }
    /** @param {{name: string, ok: boolean, detail: string, fix: string, required?: boolean}[]} checks @param {string} version @param {any} resources */
    function show(checks, version, resources) {
      const bad = checks.filter((c) => !c.ok), good = checks.filter((c) => c.ok), required = (c) => c.required !== false;
      replace(note, `${bad.filter(required).length} ${bad.filter(required).length === 1 ? "problem" : "problems"}, ${bad.filter((c) => !required(c)).length} advice, ${good.length} in order · checked at ${wall(Date.now() / 1000)}`);
      report = checks.map((c) => `${c.ok ? "ok     " : "problem"} ${c.name}: ${c.detail}${c.fix ? ` (${c.fix})` : ""}`).join("\n");
      replace(body, checks.length ? [
        h("div.checks", bad.map((c) => h("section", { cls: `check f-${required(c) ? "infrastructure" : "workload"}` }, glyph(required(c) ? "failed" : "leaving"), h("div", h("h2", safe(c.name), h("span.tag", required(c) ? "required" : "optional")), h("p", safe(c.detail)), c.fix ? [h("p.fix", h("b", "Remedy: "), safe(c.fix.replaceAll("`", ""))), [...c.fix.matchAll(/`([^`]+)`/g)].map((found) => command(found[1]))] : null)))),
        panel("In order", h("table.table", h("caption.hide", "Checks that pass"), h("tbody", good.map((c) => h("tr", h("td", h("span.state.st-ready", glyph("ok")), " ", h("b", safe(c.name))), h("td.note", safe(c.detail)), h("td.lg.note", required(c) ? "required" : "optional"))))), { note: `${good.length} checks` }),
        h("div.grid2", settings(version, resources), panel("You", facts([["Owner", safe(who.owner)], who.project ? ["Project", safe(who.project)] : null, ["Key", safe(who.key_id)], ["Scopes", who.scopes.join(", ")], ["Session ends", `${wall(who.expires_at)} UTC, renewed while this page is used`]])), modules(), mine()),
      ] : empty("The runtime has no checks of its own", "The gateway's own parts answer.", command("holdfast doctor")));
    }
    /** What this service is and what a sandbox gets that asks for nothing. @param {string} version @param {any} resources */
    function settings(version, resources) {
      const of = resources?.defaults ?? {}, memory = quantity(of.memory), cpu = of.cpu ? `${of.cpu} ${String(of.cpu) === "1" ? "core" : "cores"}` : dash();
      return panel("Settings", facts([["Version", safe(version)], ["Address", safe(location.origin)], ["Previews", who.preview_domain ? ["below ", safe(who.preview_domain, "code")] : "by path only, for programs: HOLDFAST_PREVIEW_DOMAIN is not set"], ["CPU of a sandbox", cpu], ["Memory of a sandbox", memory ? bytes(memory) : of.memory ? safe(String(of.memory)) : dash()], ["Its lifetime", of.lifetime_s ? span(of.lifetime_s) : "no limit"]]), { note: "what holds if a request names nothing else" });
    }
    function mine() {
      const box = h("div", h("p.note", "Loading"));
      held(signal, (found) => replace(box, found));
      return panel("Your limits", box, { note: "how much of them is used" });
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
