// Images of the runtime's store: pull, import, remove, and what uses them. Owns the table; pulls.js knows how far pulls and imports are.
import { Problem, call, get, path } from "../api.js";
import { add, h, replace, safe, bytes, age, count, shortImage, span } from "../dom.js";
import { field, saying, text } from "../forms.js";
import { live } from "../live.js";
import { complete, pulls } from "../pulls.js";
import { button, command, copyable, dialog, empty, glyph, link, loading, problem, skeleton, toast } from "../parts.js";

const MOST_SHOWN = 200;

/** @param {import("../pulls.js").Running} one */
function row(one) {
  const name = h("span.mono.cut", { title: one.name }, safe(one.name));
  if (one.error) return h("div.pull.failed", name, h("span", glyph(one.error.fault), " ", safe(one.error.message)), h("span.note.lg", safe(`${one.error.fault} · ${one.error.code}`)), one.error.retryable && one.again ? button("Try again", { kind: "small", onclick: one.again }) : button("Dismiss", { kind: "small", onclick: () => pulls.drop(one) }));
  const part = one.size ? one.done / one.size : 0, pace = pulls.pace(one), left = one.size && pace ? `, ${span((one.size - one.done) / pace)} left` : "";
  return h("div.pull", name, h("div.track", { role: "progressbar", cls: one.size ? "" : "unsized", "aria-label": `Progress of ${one.name}`, ...(one.size ? { "aria-valuenow": Math.round(part * 100), "aria-valuemin": 0, "aria-valuemax": 100 } : { "aria-valuetext": bytes(one.done) }) }, h("i", { style: { width: `${part * 100}%` } })),
    h("span.num", one.size ? `${bytes(one.done)} of ${bytes(one.size)}` : one.done ? bytes(one.done) : h("span.dash", "–")), h("span.note.lg", one.text || "waits for its turn", pace ? ` · ${bytes(pace)}/s${left}` : "", one.own ? "" : " · begun elsewhere"), one.cancel ? button("Cancel", { kind: "small", onclick: one.cancel }) : h("span"));
}

export const images = {
  title: "Images",
  /** @param {HTMLElement} root @param {import("../main.js").Context} context */
  mount(root, { signal, who }) {
    const may = who.scopes.includes("images");
    const note = h("span.note"), under = h("section.pulls", { "aria-label": "Pulls", hidden: true }), body = h("div"), file = /** @type {HTMLInputElement} */ (h("input", { type: "file", hidden: true, accept: ".tar,.gz,.tgz", "aria-label": "Archive" }));
    const name = /** @type {HTMLInputElement} */ (h("input.field.mono", { type: "text", placeholder: "Image to pull, such as python:3.12-slim", "aria-label": "Image to pull", spellcheck: "false", autocomplete: "off" })), submit = button("Pull", { kind: "primary" });
    submit.setAttribute("type", "submit");
    /** @type {any[]|null} */
    let found = null;
    async function read() {
      const late = found ? 0 : setTimeout(() => replace(body, loading("images", skeleton(10))), 300);
      try { found = (await get("/images", signal)).images; show(); } catch (error) { if (error instanceof Problem) { drawn = ""; replace(body, problem(error, read, "The images could not be read")); }; } finally { clearTimeout(late); }
    }
    /** How many of the person's sandboxes use each image, by its complete name. */
    function uses() {
      /** @type {Map<string, number>} */
      const found = new Map();
      for (const one of live.all.values()) if (one.image && one.status !== "ended") found.set(complete(one.image), (found.get(complete(one.image)) ?? 0) + 1);
      return found;
    }
    /** @param {any} one @param {number} used */
    function entry(one, used) {
      const host = one.name === "host", about = [one.shared && !host ? "of everybody" : "", one.parent ? `made from ${one.parent}` : "", one.nodes ? `on ${one.nodes.ready} of ${one.nodes.wanted} nodes` : ""].filter(Boolean).join(", ");
      const act = host ? h("span.note", "always there") : used ? h("span.note", "in use") : may && (!one.shared || who.scopes.includes("admin")) ? button("Remove", { kind: "small danger", onclick: () => remove(one) }) : null;
      return h("tr", h("td.cut", { title: one.name }, h("b.mono.lg", h("bdi", safe(one.name))), h("b.mono.sm", h("bdi", safe(shortImage(one.name)))), about ? h("span.note", " ", safe(about)) : null), h("td.lg.mono.note", host ? "read-only view of this machine" : one.digest ? [safe(one.digest.slice(0, 19)), "… ", copyable(one.digest, { label: "" })] : h("span.dash", "–")), h("td.num", one.size_bytes ? bytes(one.size_bytes) : h("span.dash", "–")), h("td.num.lg", one.created ? `${age(Math.max(Date.now() / 1000 - one.created, 0))} ago` : h("span.dash", "–")),
        h("td.num", used ? link(count(used), `#/sandboxes?q=${encodeURIComponent(`image:${one.name}`)}`) : "0"), h("td.acts", act));
    }
    let most = MOST_SHOWN, drawn = "";
    function show() {
      if (!found) return;
      const of = uses(), sign = JSON.stringify([found, [...of], most]);
      if (sign === drawn) return;
      drawn = sign;
      const held = body.contains(document.activeElement) ? [...body.querySelectorAll("a, button")].indexOf(/** @type {Element} */ (document.activeElement)) : -1;
      replace(note, `${count(found.length)} ${found.length === 1 ? "image" : "images"} · ${bytes(found.reduce((sum, one) => sum + (one.size_bytes || 0), 0))}`);
      replace(body, found.length ? [h("div.table-box", { tabindex: 0, role: "group", "aria-label": "Images" }, h("table.table", h("thead", h("tr", ["Name", "Digest", "Size", "Pulled", "Used by", ""].map((t, i) => h("th", { cls: ["", "lg", "num", "num lg", "num", ""][i], scope: "col" }, t || h("span.hide", "Actions"))))), h("tbody", found.slice(0, most).map((one) => entry(one, of.get(complete(one.name)) ?? 0))))),
        found.length > most ? button(`Show ${count(Math.min(found.length - most, MOST_SHOWN))} more`, { onclick: () => { most += MOST_SHOWN; show(); } }) : null]
        : empty("No images yet", "The image host, this machine's own toolchain, is always there. Pull any other image from its registry, or import an archive.", [command("holdfast pull python:3.12-slim"), command("holdfast image import mine.tar mine:1")]));
      if (held >= 0) /** @type {HTMLElement|undefined} */ ([...body.querySelectorAll("a, button")][held])?.focus();
    }
    function remove(one) {
      dialog(`Remove ${one.name}?`, h("p", "No sandbox of yours uses it. The next create with this image pulls it again."), [["Remove image", "danger fill", async () => {
        try { await call("DELETE", `${path(["images"])}/${one.name.split("/").map(encodeURIComponent).join("/")}${one.shared ? "?shared=true" : ""}`); toast("The image is removed"); } catch (error) { if (error instanceof Problem) dialog("The image is not removed", problem(error)); }
        read();
      }]]);
    }
    function drawPulls() {
      const held = under.contains(document.activeElement) ? [...under.querySelectorAll("button")].indexOf(/** @type {any} */ (document.activeElement)) : -1;
      under.hidden = !pulls.running.length;
      replace(under, pulls.running.map(row));
      if (held >= 0) under.querySelectorAll("button")[held]?.focus();
    }
    pulls.addEventListener("change", drawPulls, { signal });
    pulls.addEventListener("done", (e) => { const what = /** @type {CustomEvent} */ (e).detail; if (what) toast(`${what} is here`); read(); }, { signal });
    live.addEventListener("change", show, { signal });
    live.addEventListener("state", () => { if (live.state === "live") read(); }, { signal });
    file.addEventListener("change", () => {
      const archive = file.files?.[0];
      if (!archive) return;
      const said = saying(), given = text(`${archive.name.replace(/\.(tar|tgz|tar\.gz)$/, "").toLowerCase().replace(/[^a-z0-9._/-]/g, "-")}:1`, { cls: "mono" });
      file.value = "";
      dialog("Import an archive", h("div.form", h("p.note", safe(`${archive.name}, ${bytes(archive.size)}: an archive of docker save, or an OCI archive.`)), field("Name of the image", given), said), [["Import", "primary", () => {
        if (!given.value.trim()) { replace(said, "Give the image a name."); return false; }
        pulls.load(given.value.trim(), archive);
        return true;
      }]]);
    });
    add(root, [h("header.head", h("h1", "Images"), note, may ? h("div.actions", button("Import an archive", { onclick: () => file.click() }), file) : null),
      !may ? null : h("form.pullform", { onsubmit: (e) => { e.preventDefault(); const wanted = name.value.trim(); if (wanted) { pulls.pull(wanted); name.value = ""; } } }, h("label.find", name), submit), under, body]);
    drawPulls();
    read();
  },
};
