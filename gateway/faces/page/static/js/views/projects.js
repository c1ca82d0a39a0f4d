// Projects: parts of owners that are apart from each other, their members, and what members see of each other. For an administrator.
import { Problem, call, get, path } from "../api.js";
import { add, count, day, h, replace, safe } from "../dom.js";
import { checkbox, choice, field, quote, refused, sameCommand, saying, text } from "../forms.js";
import { button, command, dialog, empty, loading, problem, skeleton, toast } from "../parts.js";

const SHARING = [["none", "nothing of each other"], ["read", "see each other's sandboxes"], ["use", "use each other's sandboxes, as their keys permit"]];
const SHOWN_MEMBERS = 12;

/** @param {HTMLElement} body @param {import("../main.js").Context} context @param {HTMLElement} actions */
export function projects(body, { signal }, actions) {
  async function read() {
    const late = setTimeout(() => replace(body, loading("projects", skeleton(6))), 300);
    try { draw((await get("/projects", signal)).projects); } catch (error) { if (error instanceof Problem) replace(body, problem(error, read, "The projects could not be read")); } finally { clearTimeout(late); }
  }
  /** @param {any[]} found */
  function draw(found) {
    replace(body, found.length ? h("div.table-box", { tabindex: 0, role: "group", "aria-label": "Projects" }, h("table.table", h("thead", h("tr", ["Project", "Members", "Members may", "Created", ""].map((t, i) => h("th", { cls: ["", "", "lg", "num lg", ""][i], scope: "col" }, t || h("span.hide", "Actions"))))),
      h("tbody", found.map((one) => h("tr", h("td", h("b.mono", safe(one.project))), h("td", one.members.length ? [one.members.slice(0, SHOWN_MEMBERS).map((name) => h("span.tag", safe(name))), one.members.length > SHOWN_MEMBERS ? h("span.note", `and ${count(one.members.length - SHOWN_MEMBERS)} more`) : null] : h("span.dash", "–")), h("td.lg", SHARING.find(([id]) => id === one.sharing)?.[1] ?? safe(one.sharing)), h("td.num.lg", day(one.created_at)),
        h("td.acts", button("Change", { kind: "small", onclick: () => change(one) }), button("Delete", { kind: "small danger", onclick: () => remove(one) })))))))
      : empty("No projects yet", "A project keeps what its members make in it apart from all else they have. Keys, limits and names are its own.", command("holdfast project create swe --member ana")));
  }
  function make() {
    const said = saying(), same = sameCommand(), name = text("", { oninput: show, cls: "mono" }), members = text("", { oninput: show, placeholder: "ana, bo" }), sharing = choice(SHARING, "none", show);
    const names = () => members.value.split(/[\s,]+/).filter(Boolean);
    function show() { replace(said); same.show(["holdfast project create", quote(name.value || "NAME"), ...names().map((one) => `--member ${quote(one)}`), sharing.value !== "none" && `--sharing ${sharing.value}`]); }
    show();
    dialog("New project", h("div.form", field("Name", name, "small letters, digits and -"), field("Members", members), field("Members may", sharing), said, same.node), [["Create project", "primary", async () => {
      try { await call("POST", "/projects", { project: name.value.trim(), members: names(), sharing: sharing.value }); toast("The project is created"); read(); return true; } catch (error) { return refused(said, error); }
    }]]);
  }
  /** @param {any} one */
  function change(one) {
    const said = saying(), sharing = choice(SHARING, one.sharing), more = text("", { placeholder: "ana, bo" });
    const boxes = one.members.map((name) => ({ name, box: checkbox(true) }));
    dialog(`Project ${one.project}`, h("div.form", field("Members may", sharing), one.members.length ? h("fieldset.members", h("legend", "Members"), boxes.map(({ name, box }) => h("label.check", box, safe(name)))) : null, field("Add members", more), h("p.note", "Keys of a member who leaves are not valid any more. What the member made stays, for an administrator to end."), said), [["Save", "primary", async () => {
      try {
        if (sharing.value !== one.sharing) await call("PATCH", path(["projects", one.project]), { sharing: sharing.value });
        for (const { name, box } of boxes) if (!box.checked) await call("DELETE", path(["projects", one.project, "members", name]));
        for (const name of more.value.split(/[\s,]+/).filter(Boolean)) await call("PUT", path(["projects", one.project, "members", name]));
        toast("The project is changed");
        read();
        return true;
      } catch (error) { read(); return refused(said, error); }
    }]]);
  }
  /** @param {any} one */
  function remove(one) {
    const said = saying();
    dialog(`Delete the project ${one.project}?`, [h("p", "All of its keys are revoked. A project in which a member has sandboxes is not deleted."), said], [["Delete project", "danger fill", async () => { try { await call("DELETE", path(["projects", one.project])); toast("The project is deleted"); read(); return true; } catch (error) { return refused(said, error); } }]]);
  }
  add(actions, button("New project", { kind: "primary", glyph: "plus", onclick: make }));
  read();
}
