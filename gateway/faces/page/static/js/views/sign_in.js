// Signing in: by a link, whose token is in the address after the #, or with an API key that a person pastes.
import { Problem, session } from "../api.js";
import { h, replace } from "../dom.js";
import { button, command } from "../parts.js";

/** @param {string} token of a link; "" without @param {(who: any) => void} onwho */
export function signIn(token, onwho) {
  const said = h("p.said", { role: "alert" }), key = h("input.field.mono", { type: "password", id: "key", autocomplete: "off", spellcheck: "false", placeholder: "hf_…", "aria-label": "API key" });
  const submit = button("Sign in", { kind: "primary" });
  submit.setAttribute("type", "submit");
  /** @param {{key?: string, link?: string}} body */
  const begin = async (body) => {
    replace(said);
    try { onwho(await session.begin(body)); } catch (error) {
      if (!(error instanceof Problem)) throw error;
      replace(said, `${error.message[0].toUpperCase()}${error.message.slice(1)}. ${error.hint}`);
      /** @type {HTMLElement} */ (key).focus();
    }
  };
  const form = h("form.sign-in", { onsubmit: (e) => { e.preventDefault(); const value = /** @type {HTMLInputElement} */ (key).value.trim(); if (value) begin({ key: value }); else /** @type {HTMLElement} */ (key).focus(); } },
    h("h1", "Sign in"), h("p.note", "Paste an API key of this service. It is exchanged for a session of 12 hours and is not stored in this browser."),
    h("label", { for: "key" }, "API key"), h("div.row", key, submit), said,
    h("p.note", "On the machine of the service, the link that is printed at its start signs in once. Keys are in its data folder:"), command(". .holdfast/env; echo $HOLDFAST_API_KEY"));
  if (token) { history.replaceState(null, "", "#/sign-in"); begin({ link: token }); }
  return form;
}
