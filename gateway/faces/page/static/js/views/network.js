// What the sandbox may reach, which can be changed while it runs.
import { Problem, call, path } from "../api.js";
import { h, replace, safe } from "../dom.js";
import { button, dialog, panel, problem, segmented, toast } from "../parts.js";
import { live } from "../live.js";

/** @param {{id: string, signal: AbortSignal, sandbox: () => any}} context */
export function network({ id, signal, sandbox }) {
  const root = h("section.stack");
  /** @param {any} next */
  async function change(next) {
    try { live.record(await call("PUT", path(["sandboxes", id, "network"]), next)); toast("The network of the sandbox is changed"); } catch (error) { if (error instanceof Problem) dialog("The network could not be changed", problem(error)); }
    draw();
  }
  function add_(now) {
    const field = /** @type {HTMLInputElement} */ (h("input.field.mono", { type: "text", placeholder: "pypi.org, *.example.org or 203.0.113.0/24", spellcheck: "false" }));
    dialog("Let it reach", h("div.form", h("label", h("span", "Name or network"), field)), [["Add", "primary", () => { const text = field.value.trim(); if (text) change({ ...now, mode: "listed", ...(/^[0-9a-f:.]+(\/[0-9]+)?$/i.test(text) ? { reaches: [...(now.reaches ?? []), { cidr: text }] } : { domains: [...(now.domains ?? []), text] }) }); }]]);
  }
  let drawn = "";
  function draw() {
    const now = sandbox()?.record?.network ?? { mode: "none" }, sign = JSON.stringify(now);
    if (sign === drawn) return;
    drawn = sign;
    const without = (key, i) => { const next = { ...now, [key]: now[key].filter((_, k) => k !== i) }; return next.reaches?.length || next.domains?.length || next.dns ? next : { mode: "none" }; };
    const rows = [...(now.domains ?? []).map((name, i) => [name, "443, 80", () => change(without("domains", i))]), ...(now.reaches ?? []).map((one, i) => [one.cidr, (one.ports ?? []).join(", ") || "all", () => change(without("reaches", i))])];
    replace(root, h("div.tools", segmented("Network", [["none", "None"], ["internet", "Internet"], ["listed", "Listed only"]], now.mode, (mode) => (mode === "listed" ? add_(now) : change({ mode }))), h("span.note", "What the sandbox may reach. This service, private, link-local and metadata addresses are never reachable.")),
      panel("Reaches", rows.length ? h("table.table", h("thead", h("tr", h("th", { scope: "col" }, "Address or name"), h("th", { scope: "col" }, "Ports"), h("th", { scope: "col" }, h("span.hide", "Actions")))), h("tbody", rows.map(([name, where, act]) => h("tr", h("td.mono", safe(name)), h("td.mono", where), h("td.acts", button("Remove", { kind: "small", onclick: act })))))) : h("p.pad", now.mode === "internet" ? "Every public address." : "The sandbox reaches nothing but itself. Choose Internet or Listed only to change this while it runs."), { actions: button("Add", { glyph: "plus", onclick: () => add_(now) }) }));
  }
  live.addEventListener("change", draw, { signal });
  draw();
  return root;
}
