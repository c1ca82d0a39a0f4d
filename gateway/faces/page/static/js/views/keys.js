// API keys: who may do what, until when. Owns the table of keys, how they are made, rotated and revoked, and what a person without the scope admin
// sees in its place. The tabs beside it are views/projects.js and views/limits.js.
import { Problem, call, get, path } from "../api.js";
import { add, age, count, day, h, replace, safe, span } from "../dom.js";
import { checkbox, choice, field, quote, refused, sameCommand, saying, text } from "../forms.js";
import { button, command, copyable, dialog, empty, glyph, icon, loading, panel, problem, skeleton, tabs, toast } from "../parts.js";
import { held, limits } from "./limits.js";
import { projects } from "./projects.js";

const SCOPES = [["read", "see sandboxes, output and recordings"], ["create", "create and delete sandboxes"], ["exec", "run commands and open terminals"], ["files", "read and write files"], ["images", "import, pull and remove images"], ["admin", "everything, of all owners"]];
const LIVES = [["7776000", "in 90 days"], ["2592000", "in 30 days"], ["86400", "in 1 day"], ["", "never"]];
const GRACES = [["", "at once"], ["3600", "after 1 h"], ["86400", "after 1 day"], ["604800", "after 7 days"]];
const TABS = [["", "Keys"], ["projects", "Projects"], ["limits", "Limits"]];
const SHOWN = 200;
const SOON_S = 14 * 86400;

const dash = () => h("span.dash", "–");
/** @param {any} key @param {number} now */
function end(key, now) {
  const at = key.revoked_at ?? key.expires_at;
  if (at === null) return "never";
  if (!key.valid) return h("span.note", glyph("ended"), ` ${key.revoked_at === null ? "expired" : "revoked"} ${age(Math.max(now - at, 0))} ago`);
  return at - now < SOON_S ? h("span.f-workload", glyph("leaving"), ` in ${age(at - now)}`) : `in ${age(at - now)}`;
}
/** The text of a new key, once. @param {any} made @param {string} title */
function once(made, title) {
  dialog(title, [h("p", "Copy it now. It is stored as a hash and is not shown again."), h("div.cmd", h("code", { tabindex: 0 }, made.key), copyable(made.key)), h("p.note", "Programs read it from HOLDFAST_API_KEY.")]);
}

/** @param {HTMLElement} body @param {import("../main.js").Context} context @param {HTMLElement} actions */
function list(body, { signal, who }, actions) {
  const search = /** @type {HTMLInputElement} */ (h("input.field", { id: "filter", type: "search", placeholder: "Find", "aria-label": "Find a key", title: "By name, owner, project or id" }));
  /** @type {any[]} */
  let found = [];
  let most = SHOWN;
  async function read() {
    const late = found.length ? 0 : setTimeout(() => replace(body, loading("keys", skeleton(10))), 300);
    try { found = (await get("/keys", signal)).keys; draw(); } catch (error) { if (error instanceof Problem) replace(body, problem(error, read, "The keys could not be read")); } finally { clearTimeout(late); }
  }
  /** @param {any} key @param {number} now */
  function row(key, now) {
    const own = key.key_id === who.key_id;
    return h("tr", { cls: key.valid ? "" : "faded" }, h("td", h("b", key.note ? safe(key.note) : key.in_file ? "of the keys file" : "without a name"), own ? h("span.note", " this session") : null), h("td.lg.mono.note", safe(key.key_id)), h("td", safe(key.owner)), h("td.lg", key.project ? safe(key.project) : dash()), h("td.lg", key.scopes.map((scope) => h("span", { cls: scope === "admin" ? "tag strong" : "tag" }, safe(scope)))),
      h("td.num.lg", key.created_at ? day(key.created_at) : dash()), h("td.num.lg", key.used_at === null ? dash() : now - key.used_at < 60 ? "now" : `${age(now - key.used_at)} ago`), h("td.num", end(key, now)),
      h("td.acts", !key.valid ? null : key.in_file ? h("span.note.lg", "edit the keys file") : [h("span.lg", button("Rotate", { kind: "small", onclick: () => rotate(key) })), button("Revoke", { kind: "small danger", onclick: () => revoke(key, own) })]));
  }
  function draw() {
    const now = Date.now() / 1000, wanted = search.value.trim().toLowerCase();
    const shown = found.filter((key) => !wanted || [key.note, key.owner, key.project, key.key_id].join(" ").toLowerCase().includes(wanted)).sort((a, b) => Number(b.valid) - Number(a.valid));
    replace(body, found.length ? [h("div.table-box", { tabindex: 0, role: "group", "aria-label": "Keys" }, h("table.table", h("thead", h("tr", ["Name", "Key", "Owner", "Project", "Scopes", "Created", "Last used", "Expires", ""].map((t, i) => h("th", { cls: ["", "lg", "", "lg", "lg", "num lg", "num lg", "num", ""][i], scope: "col" }, t || h("span.hide", "Actions"))))), h("tbody", shown.slice(0, most).map((key) => row(key, now))))),
      shown.length ? null : h("p.pad.note", "No key matches."), shown.length > most ? button(`Show ${count(Math.min(shown.length - most, SHOWN))} more`, { onclick: () => { most += SHOWN; draw(); } }) : null]
      : empty("No keys yet", "A key lets a program use this service in its owner's name.", command("holdfast key create --owner ana --scopes read,create,exec")));
  }
  function make() {
    const said = saying(), same = sameCommand(), name = text("", { oninput: show }), owner = text(who.owner, { oninput: show }), project = text("", { oninput: show, placeholder: "none" }), life = choice(LIVES, LIVES[0][0], show);
    const scopes = SCOPES.map(([scope, what]) => ({ scope, what, box: checkbox(["read", "create", "exec", "files"].includes(scope), show) }));
    const chosen = () => scopes.filter((one) => one.box.checked).map((one) => one.scope);
    function show() { replace(said); same.show(["holdfast key create", `--owner ${quote(owner.value || "OWNER")}`, project.value && `--project ${quote(project.value)}`, `--scopes ${chosen().join(",") || "read"}`, life.value && `--expires ${life.value}`, name.value && `--note ${quote(name.value)}`]); }
    show();
    dialog("New key", h("div.form", h("div.form2", field("Name", name), field("Owner", owner), field("Project", project), field("Expires", life)), h("fieldset", h("legend", "Scopes"), scopes.map((one) => h("label.check", one.box, h("b", one.scope), h("span.note", one.what)))), said, same.node), [["Create key", "primary", async () => {
      if (!chosen().length) { replace(said, "Choose at least one scope."); return false; }
      try {
        const made = await call("POST", "/keys", { owner: owner.value.trim(), project: project.value.trim() || undefined, scopes: chosen(), expires_s: life.value ? Number(life.value) : undefined, note: name.value.trim() || undefined });
        once(made, "Key created");
        read();
        return true;
      } catch (error) { return refused(said, error); }
    }]]);
  }
  /** @param {any} key */
  function rotate(key) {
    const said = saying(), grace = choice(GRACES, "86400");
    dialog(`Rotate ${key.note || key.key_id}?`, h("div.form", h("p", "A new key with the same owner, project, scopes and end is made. The old one ends as chosen, so programs can change to the new one meanwhile."), field("The old key ends", grace), said), [["Rotate key", "primary", async () => {
      try { once(await call("POST", path(["keys", key.key_id, "rotate"]), grace.value ? { grace_s: Number(grace.value) } : {}), "The new key"); read(); return true; } catch (error) { return refused(said, error); }
    }]]);
  }
  /** @param {any} key @param {boolean} own */
  function revoke(key, own) {
    const said = saying();
    dialog(`Revoke ${key.note || key.key_id}?`, [h("p", "Programs that use it are refused at once, and what they have open ends. Sandboxes they created keep running until their own limits."), own ? h("p", h("b", "It is the key of this session: this page is signed out.")) : null, said], [["Revoke key", "danger fill", async () => {
      try { await call("DELETE", path(["keys", key.key_id])); toast("The key is revoked"); read(); return true; } catch (error) { return refused(said, error); }
    }]]);
  }
  search.addEventListener("input", draw);
  add(actions, [h("label.find", icon("search"), search, h("kbd", "/")), button("New key", { kind: "primary", glyph: "plus", onclick: make })]);
  read();
}

export const keys = {
  title: "Keys",
  /** @param {HTMLElement} root @param {import("../main.js").Context} context */
  mount(root, context) {
    const { at, who, signal } = context, admin = who.scopes.includes("admin"), tab = admin && TABS.some(([id]) => id === at.id) ? at.id : "", body = h("div.stack"), actions = h("div.actions"), note = { "": "A key is shown once, when it is created", projects: "What an owner makes in a project is apart from all else", limits: "Of owners, projects and keys" }[tab];
    add(root, [h("header.head", h("h1", "Keys"), h("span.note", admin ? note : "A key lets a program use this service in its owner's name"), actions), admin ? tabs("Keys", TABS.map(([id, name]) => [id, name, id ? `#/keys/${id}` : "#/keys"]), tab) : null, body]);
    if (tab === "projects") { projects(body, context, actions); return; }
    if (tab === "limits") { limits(body, context, actions); return; }
    if (admin) list(body, context, actions);
    else add(body, h("section.problem", h("h2", glyph("caller"), "You may not see keys"), h("p", `Your key has the scopes ${SCOPES.map(([scope]) => scope).filter((scope) => who.scopes.includes(scope)).join(", ")}. This view needs admin.`), h("p.hint", "Ask an administrator of this service.")));
    const mine = h("div");
    add(root, [h("div.grid2", panel("This session", h("table.table", h("thead", h("tr", ["Scope", "Permits", "This key"].map((t) => h("th", { scope: "col" }, t)))), h("tbody", SCOPES.map(([name, what]) => h("tr", h("td", h("b", name)), h("td.note", what), h("td", who.scopes.includes(name) ? "yes" : dash()))))), { note: ["key ", safe(who.key_id), " of ", safe(who.owner), who.project ? [" in ", safe(who.project)] : null, `, signed in for ${span(Math.max(who.expires_at - Date.now() / 1000, 0))}`] }), mine)]);
    held(signal, (found) => replace(mine, panel("Limits that hold for you", found)));
  },
};
