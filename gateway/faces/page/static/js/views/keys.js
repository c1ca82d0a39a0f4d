// API keys: who may do what. Shows the key of this session, and the keys of the service to those who may see them.
import { add, h } from "../dom.js";
import { command, panel } from "../parts.js";

const SCOPES = [["read", "see sandboxes, output and recordings"], ["create", "create and delete sandboxes"], ["exec", "run commands and open terminals"], ["files", "read and write files"], ["images", "import, pull and remove images"], ["admin", "everything, of all owners"]];

export const keys = {
  title: "Keys",
  /** @param {HTMLElement} root @param {import("../main.js").Context} context */
  mount(root, { who }) {
    add(root, [h("header.head", h("h1", "Keys"), h("span.note", "A key lets a program use this service in its owner's name")),
      panel("This session", h("table.table", h("thead", h("tr", ["Scope", "Permits", "This key"].map((t) => h("th", { scope: "col" }, t)))), h("tbody", SCOPES.map(([name, text]) => h("tr", h("td", h("b", name)), h("td.note", text), h("td", who.scopes.includes(name) ? "yes" : h("span.dash", "–")))))), { note: `key ${who.key_id} of ${who.owner}` }),
      panel("More keys", h("div.pad", h("p", "Keys are lines of the keys file: an owner, the SHA-256 of the key, and its scopes. A key that is removed there ends its sessions of this page at once."), command("printf '%s' \"$KEY\" | sha256sum")))]);
  },
};
