// Images of the runtime's store: pull, import, remove, and what uses them.
import { Problem, call, get, path, upload } from "../api.js";
import { add, h, replace, safe, bytes, age, count, shortImage } from "../dom.js";
import { live } from "../live.js";
import { button, command, copyable, dialog, empty, glyph, link, loading, problem, skeleton, toast } from "../parts.js";

/** Pulls and imports that this page has begun: they continue when another view is open. @type {{name: string, size: number, done: number, text: string, error: Problem|null, again: () => void}[]} */
const running = [];
const changed = new EventTarget();

/** @param {string} name @param {number} size @param {(one: any) => Promise<any>} act */
function begin(name, size, act) {
  const one = { name, size, done: 0, text: "", error: /** @type {Problem|null} */ (null), again: () => { drop(one); begin(name, size, act); } };
  running.push(one);
  act(one).then(() => { drop(one); toast(`${name} is here`); }, (error) => { one.error = error instanceof Problem ? error : new Problem(0, {}); changed.dispatchEvent(new Event("change")); });
  changed.dispatchEvent(new Event("change"));
}
function drop(one) { const at = running.indexOf(one); if (at >= 0) running.splice(at, 1); changed.dispatchEvent(new Event("change")); }
const pull = (name) => begin(name, 0, () => call("POST", "/images/pull", { name }));
function row(one) {
  if (one.error) return h("div.pull.failed", h("span.mono.cut", one.name), h("span", glyph(one.error.fault), " ", safe(one.error.message)), h("span.note.lg", `${one.error.fault} · ${one.error.reason || one.error.code}`), button(one.error.retryable ? "Try again" : "Dismiss", { kind: "small", onclick: one.error.retryable ? one.again : () => drop(one) }));
  const part = one.size ? one.done / one.size : 0;
  return h("div.pull", h("span.mono.cut", one.name), h("div.track", { role: "progressbar", "aria-label": `Progress of ${one.name}`, ...(one.size ? { "aria-valuenow": Math.round(part * 100), "aria-valuemin": 0, "aria-valuemax": 100 } : {}) }, h("i", { style: { width: `${part * 100}%` } })), h("span.num", one.size ? `${bytes(one.done)} of ${bytes(one.size)}` : one.done ? bytes(one.done) : h("span.dash", "–")), h("span.note.lg", one.text || (one.size ? "uploading" : "pulling")), h("span"));
}

export const images = {
  title: "Images",
  /** @param {HTMLElement} root @param {import("../main.js").Context} context */
  mount(root, { signal }) {
    const note = h("span.note"), pulls = h("section.pulls", { "aria-label": "Pulls", hidden: true }), body = h("div"), file = /** @type {HTMLInputElement} */ (h("input", { type: "file", hidden: true, accept: ".tar,.gz,.tgz", "aria-label": "Archive" }));
    const name = /** @type {HTMLInputElement} */ (h("input.field.mono", { type: "text", placeholder: "Image to pull, such as python:3.12-slim", "aria-label": "Image to pull", spellcheck: "false", autocomplete: "off" })), submit = button("Pull", { kind: "primary" });
    submit.setAttribute("type", "submit");
    /** @type {any[]|null} */
    let found = null;
    async function read() {
      const late = found ? 0 : setTimeout(() => replace(body, loading("images", skeleton(10))), 300);
      try { found = (await get("/images", signal)).images; show(); } catch (error) { if (error instanceof Problem) replace(body, problem(error, read, "The images could not be read")); } finally { clearTimeout(late); }
    }
    const uses = (image) => live.list_().filter((one) => one.image === image && one.status !== "ended").length;
    function show() {
      if (!found) return;
      replace(note, `${count(found.length)} ${found.length === 1 ? "image" : "images"} · ${bytes(found.reduce((sum, one) => sum + (one.size_bytes || 0), 0))}`);
      replace(body, found.length ? h("div.table-box", h("table.table", h("thead", h("tr", ["Name", "Digest", "Size", "Pulled", "Used by", ""].map((t, i) => h("th", { cls: ["", "lg", "num", "num lg", "num", ""][i], scope: "col" }, t || h("span.hide", "Actions"))))),
        h("tbody", found.map((one) => { const used = uses(one.name); return h("tr", h("td.cut", { title: one.name }, h("b.mono.lg", h("bdi", safe(one.name))), h("b.mono.sm", h("bdi", safe(shortImage(one.name))))), h("td.lg.mono.note", one.digest ? [one.digest.slice(0, 19), "… ", copyable(one.digest, { label: "" })] : h("span.dash", "–")), h("td.num", one.size_bytes ? bytes(one.size_bytes) : h("span.dash", "–")), h("td.num.lg", one.created ? `${age(Math.max(Date.now() / 1000 - one.created, 0))} ago` : h("span.dash", "–")),
          h("td.num", used ? link(count(used), `#/sandboxes?q=${encodeURIComponent(`image:${one.name}`)}`) : "0"), h("td.acts", used ? h("span.note", "in use") : button("Remove", { kind: "small danger", onclick: () => remove(one) }))); }))))
        : empty("No images yet", "The image host, this machine's own toolchain, is always there. Pull any other image from its registry, or import an archive.", [command("holdfast pull python:3.12-slim"), command("holdfast image import mine.tar mine:1")]));
    }
    function remove(one) {
      dialog(`Remove ${one.name}?`, h("p", "No sandbox of yours uses it. The next create with this image pulls it again."), [["Remove image", "danger fill", async () => {
        try { await call("DELETE", `${path(["images"])}/${one.name.split("/").map(encodeURIComponent).join("/")}${one.shared ? "?shared=true" : ""}`); toast("The image is removed"); } catch (error) { if (error instanceof Problem) dialog("The image is not removed", problem(error)); }
        read();
      }]]);
    }
    function drawPulls() { pulls.hidden = !running.length; replace(pulls, running.map(row)); }
    changed.addEventListener("change", () => { drawPulls(); read(); }, { signal });
    live.addEventListener("event", (e) => {
      const { name: kind, facts } = /** @type {CustomEvent} */ (e).detail, one = kind === "pull" ? running.find((x) => x.name === facts.name && !x.error) : undefined;
      if (one) { one.done = facts.received_bytes ?? one.done; one.text = String(facts.state ?? ""); drawPulls(); }
    }, { signal });
    live.addEventListener("change", show, { signal });
    live.addEventListener("state", () => { if (live.state === "live") read(); }, { signal });
    file.addEventListener("change", () => {
      const archive = file.files?.[0];
      if (!archive) return;
      const given = /** @type {HTMLInputElement} */ (h("input.field.mono", { type: "text", value: `${archive.name.replace(/\.(tar|tgz|tar\.gz)$/, "").toLowerCase().replace(/[^a-z0-9._/-]/g, "-")}:1`, spellcheck: "false" }));
      dialog("Import an archive", h("div.form", h("p.note", `${archive.name}, ${bytes(archive.size)}: an archive of docker save, or an OCI archive.`), h("label", h("span", "Name of the image"), given)), [["Import", "primary", () => { begin(given.value, archive.size, (one) => upload(path(["images"], { name: given.value }), archive, (done) => { one.done = done; drawPulls(); })); file.value = ""; }]]);
    });
    add(root, [h("header.head", h("h1", "Images"), note, h("div.actions", button("Import an archive", { onclick: () => file.click() }), file)),
      h("form.pullform", { onsubmit: (e) => { e.preventDefault(); const wanted = name.value.trim(); if (wanted) { pull(wanted); name.value = ""; } } }, h("label.find", name), submit), pulls, body]);
    drawPulls();
    read();
  },
};
