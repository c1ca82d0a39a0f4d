// The parts of forms: labelled fields, choices, words of the command that does the same, and what a form says to a refusal.
import { Problem } from "./api.js";
import { h, replace, safe } from "./dom.js";
import { command } from "./parts.js";

/** @param {string} label @param {any} node @param {string} [note] */
export const field = (label, node, note) => h("label", h("span", label, note ? h("span.note", ` ${note}`) : null), node);
/** @param {string[][]} list values and their names @param {string} chosen @param {() => void} [onchange] @returns {HTMLSelectElement} */
export const choice = (list, chosen, onchange) => /** @type {HTMLSelectElement} */ (h("select.field", { onchange: onchange ?? null }, list.map(([value, name]) => h("option", { value, selected: value === chosen }, name))));
/** @param {string} value @param {any} [more] @returns {HTMLInputElement} */
export const text = (value, more = {}) => /** @type {HTMLInputElement} */ (h("input.field", { type: "text", value, spellcheck: "false", autocomplete: "off", ...more }));
/** @param {boolean} checked @param {() => void} [onchange] @returns {HTMLInputElement} */
export const checkbox = (checked, onchange) => /** @type {HTMLInputElement} */ (h("input", { type: "checkbox", checked, onchange: onchange ?? null }));
/** A word of a command line. @param {string} word */
export const quote = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);
/** Where a form says why it was refused. */
export const saying = () => h("p.f-caller", { role: "alert" });
/** Says why, and keeps the form open. @param {Element} said @param {unknown} error @returns {false} */
export function refused(said, error) {
  if (!(error instanceof Problem)) throw error;
  replace(said, safe(error.message), error.hint ? [". ", safe(error.hint)] : null);
  return false;
}
/** The command that does the same as a form. @returns {{node: Element, show: (words: (string|false|undefined)[]) => void}} */
export function sameCommand() {
  const box = h("div");
  return { node: h("div", h("p.note", "The same as a command"), box), show: (words) => { replace(box, command(words.filter(Boolean).join(" "))); } };
}
