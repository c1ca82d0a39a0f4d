// Limits: how much of them the caller has used, for everybody; and those of owners, projects and keys, which an operator changes.
import { Problem, call, get, path } from "../api.js";
import { add, bytes, count, h, replace, safe } from "../dom.js";
import { meter } from "../charts.js";
import { field, quote, refused, sameCommand, saying, text } from "../forms.js";
import { button, command, dialog, empty, loading, problem, skeleton, toast } from "../parts.js";
import { quantity } from "../quantities.js";

const whole = (n) => count(Math.round(n * 10) / 10);
/** What each limit is called, how it is shown and how it is typed. @type {Record<string, [string, (n: number) => string]>} */
const NAMES = { sandboxes: ["Sandboxes", whole], cores: ["Cores", whole], memory_bytes: ["Memory", bytes], creates_per_minute: ["Creates a minute", whole], requests_per_minute: ["Requests a minute", whole], output_bytes_per_minute: ["Output a minute", bytes], upload_bytes_per_minute: ["Uploads a minute", bytes] };
const KINDS = Object.keys(NAMES);
const isSize = (name) => name.includes("bytes");

/** What holds for the caller, as nodes; again each time the caller's sandboxes change. @param {AbortSignal} signal @param {(nodes: any, found: any[]) => void} onfound */
export function held(signal, onfound) {
  get("/limits", signal).then(({ limits: found }) => onfound(shown(found), found), (error) => { if (error instanceof Problem) onfound(problem(error), []); });
}
/** @param {any[]} found */
function shown(found) {
  if (!found.length) return h("p.pad.note", "None. An administrator can limit sandboxes, cores, memory and rates of an owner, a project or a key.");
  return h("div.meters", found.map((one) => {
    const [name, format] = NAMES[one.name] ?? [one.name, whole], whose = one.subject.startsWith("owner:") ? "" : `, of the ${one.subject.replace(":", " ")}`;
    return one.used !== null ? meter(`${name}${whose}`, one.used, one.most, format) : h("div.meter-text", h("span", safe(`${name}${whose}`)), h("span.num", `${format(one.most)}, ${format(Math.max(one.left ?? 0, 0))} free now`));
  }));
}

/** Limits of everybody. @param {HTMLElement} body @param {import("../main.js").Context} context @param {HTMLElement} actions */
export function limits(body, { signal }, actions) {
  /** @type {any[]} */
  let found = [];
  async function read() {
    const late = setTimeout(() => replace(body, loading("limits", skeleton(6))), 300);
    try { found = (await get(path(["limits"], { subjects: "all" }), signal)).limits; draw(); } catch (error) { if (error instanceof Problem) replace(body, problem(error, read, "The limits could not be read")); } finally { clearTimeout(late); }
  }
  function draw() {
    replace(body, found.length ? h("div.table-box", { tabindex: 0, role: "group", "aria-label": "Limits" }, h("table.table", h("thead", h("tr", ["Whose", ...KINDS.map((name) => NAMES[name][0]), ""].map((t, i) => h("th", { cls: i === 0 ? "" : i > KINDS.length ? "" : i > 3 ? "num lg" : "num", scope: "col" }, t || h("span.hide", "Actions"))))),
      h("tbody", found.map((one) => h("tr", h("td", h("b.mono", safe(one.subject))), KINDS.map((name, i) => h("td", { cls: i > 2 ? "num lg" : "num" }, one[name] === null ? h("span.dash", "–") : NAMES[name][1](one[name]))), h("td.acts", button("Change", { kind: "small", onclick: () => change(one) }), button("Remove", { kind: "small danger", onclick: () => remove(one.subject) })))))))
      : empty("No limits yet", "Without limits everybody may use what the service has. A limit of owner:* holds for each owner without its own.", command("holdfast limits owner:ana --set sandboxes=20")));
  }
  /** @param {any} [one] */
  function change(one) {
    const said = saying(), same = sameCommand(), subject = text(one?.subject ?? "owner:", { oninput: show, readonly: Boolean(one), cls: "mono" });
    const inputs = KINDS.map((name) => /** @type {const} */ ([name, text(one?.[name] == null ? "" : isSize(name) ? written(one[name]) : String(one[name]), { oninput: show, placeholder: "none" })]));
    const values = () => Object.fromEntries(inputs.map(([name, input]) => [name, !input.value.trim() ? null : isSize(name) ? quantity(input.value) || NaN : Number(input.value)]));
    function show() { replace(said); const set = Object.entries(values()).filter(([, value]) => value !== null).map(([name, value]) => `--set ${name}=${value}`); same.show(["holdfast limits", quote(subject.value), ...(set.length ? set : ["--clear"])]); }
    show();
    dialog(one ? `Limits of ${one.subject}` : "New limits", h("div.form", field("Whose", subject, "owner:NAME, owner:* for each owner without its own, project:NAME or key:ID"), h("div.form2", inputs.map(([name, input]) => field(NAMES[name][0], input, isSize(name) ? (name === "memory_bytes" ? "such as 16g" : "such as 512m") : ""))), said, same.node), [["Set limits", "primary", async () => {
      const wrong = Object.entries(values()).find(([, value]) => Number.isNaN(value));
      if (wrong) { replace(said, `${NAMES[wrong[0]][0]} is not a number.`); return false; }
      try { await call("PUT", path(["limits", subject.value.trim()]), values()); toast("The limits hold now"); read(); return true; } catch (error) { return refused(said, error); }
    }]]);
  }
  /** @param {string} subject */
  function remove(subject) {
    const said = saying();
    dialog(`Remove the limits of ${subject}?`, [h("p", "Then only other limits hold for it, and without any it may use what the service has."), said], [["Remove limits", "danger fill", async () => { try { await call("DELETE", path(["limits", subject])); read(); return true; } catch (error) { return refused(said, error); } }]]);
  }
  add(actions, button("New limits", { kind: "primary", glyph: "plus", onclick: () => change() }));
  read();
}
/** A size as it can be typed: 17179869184 is "16g". @param {number} n */
function written(n) {
  for (const [unit, size] of /** @type {[string, number][]} */ ([["g", 2 ** 30], ["m", 2 ** 20], ["k", 2 ** 10]])) if (n && n % size === 0) return `${n / size}${unit}`;
  return String(n);
}
