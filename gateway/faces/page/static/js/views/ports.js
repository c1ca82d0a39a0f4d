// Ports on which programs in the sandbox listen, with links to their previews.
import { Problem, call, get, path } from "../api.js";
import { h, replace, safe, span } from "../dom.js";
import { live } from "../live.js";
import { button, command, copyable, dialog, empty, icon, loading, panel, problem, skeleton } from "../parts.js";

const LINK_S = 3600;

/** @param {{id: string, signal: AbortSignal, who: any}} context */
export function ports({ id, signal, who }) {
  const body = h("div.stack"), root = h("section.ports", body);
  /** @type {Map<number, any>} */
  const links = new Map();
  let drawn = "";
  async function read() {
    const late = drawn ? 0 : setTimeout(() => replace(body, loading("ports", skeleton(4))), 300);
    try { show((await get(path(["sandboxes", id, "ports"]), signal)).ports); } catch (error) { if (error instanceof Problem) { drawn = ""; replace(body, problem(error, read, "The ports could not be read")); } } finally { clearTimeout(late); }
  }
  /** @param {number} port */
  const link = async (port) => { links.set(port, await call("POST", path(["sandboxes", id, "previews"]), { port, expires_s: LINK_S })); };
  /** @param {number} port */
  async function openPreview(port) {
    const tab = window.open("about:blank", "_blank");
    try {
      await link(port);
      const made = links.get(port);
      if (tab) { tab.opener = null; tab.location.replace(made.url); }
      drawn = "";
      read();
    } catch (error) { tab?.close(); if (error instanceof Problem) dialog("There is no preview of this port", problem(error)); }
  }
  /** @param {number} port */
  async function share(port) {
    try {
      await link(port);
      const made = links.get(port);
      dialog(`A link to port ${port}`, [h("p", `Anyone with this link can open the port until it expires, in ${span(made.expires_at - Date.now() / 1000)}.`), h("div.cmd", h("code", made.url), copyable(made.url)), made.form === "path" ? h("p.note", "This service has no preview domain, so the link has the form with a path: it is for programs. Browsers show it without cookies and scripts of their own.") : null]);
    } catch (error) { if (error instanceof Problem) dialog("There is no link to this port", problem(error)); }
  }
  /** @param {{port: number, address: string, uid: number}[]} found */
  function show(found) {
    const sign = JSON.stringify([found, [...links.keys()]]);
    if (sign === drawn) return;
    drawn = sign;
    const of = new Map();
    for (const one of found) of.set(one.port, [...(of.get(one.port) ?? []), one]);
    const row = ([port, all]) => h("tr", h("td.num.left", h("b", port)), h("td.lg.mono", safe(all.map((one) => one.address).join(", "))), h("td.lg.num", all[0].uid), h("td.cut", button("Open preview", { kind: "small", onclick: () => openPreview(port) }), " ", icon("external")), h("td.lg", links.has(port) ? `signed link, ${span(links.get(port).expires_at - Date.now() / 1000)} left` : "private"), h("td.acts", button("Share", { kind: "small", title: "Make a signed link that expires", onclick: () => share(port) })));
    replace(body, of.size ? h("div.table-box", h("table.table", h("thead", h("tr", ["Port", "Listens on", "User", "Preview", "Who can open it", ""].map((t, i) => h("th", { cls: ["", "lg", "lg num", "", "lg", ""][i], scope: "col" }, t || h("span.hide", "Actions"))))), h("tbody", [...of].map(row))))
      : empty("Nothing listens", "A port appears here as soon as a program in the sandbox listens on it.", command(`holdfast exec -d ${id} python3 -m http.server`)),
    h("div.row", button("Look again", { kind: "small", onclick: read }), h("span.note", "The sandbox reports its ports: this is its claim.")),
    panel("From your machine", h("div.pad", h("p", "A tunnel makes a port of the sandbox a local one. It works without a preview domain."), command(`holdfast port ${id} 9000:${[...of.keys()][0] ?? 8000}`))),
    h("p.note", who.preview_domain ? "A preview is another origin than this page: an application in the sandbox can neither read this page nor act for you." : "This service has no preview domain: previews have the form with a path, which browsers show without cookies and scripts. Set HOLDFAST_PREVIEW_DOMAIN for applications."));
  }
  live.addEventListener("event", (e) => { const { id: of, name } = /** @type {CustomEvent} */ (e).detail; if (of === id && name === "ports") read(); }, { signal });
  addEventListener("focus", read, { signal });
  read();
  return root;
}
