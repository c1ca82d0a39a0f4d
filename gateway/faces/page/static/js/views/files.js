// Files of a sandbox: browse, view text and images, upload, download. Names and contents are hostile text: text nodes, or images from bytes.
import { API, Problem, bytesOf, get, path, upload as send } from "../api.js";
import { add, h, replace, safe, bytes, age } from "../dom.js";
import { fetchFile } from "../downloads.js";
import { field, saying, text } from "../forms.js";
import { button, command, dialog, empty, icon, loading, problem, skeleton, toast } from "../parts.js";

const SHOWN_BYTES = 512 * 1024;
const IMAGES = { png: "image/png", jpg: "image/jpeg", jpeg: "image/jpeg", gif: "image/gif", webp: "image/webp" };
const LINES = 5000;

const join = (folder, name) => (folder === "/" ? `/${name}` : `${folder}/${name}`);
/** @param {Uint8Array} data */
function isText(data) {
  if (data.subarray(0, 8000).includes(0)) return false;
  try { new TextDecoder("utf-8", { fatal: true }).decode(data); return true; } catch { return false; }
}
/** @param {{id: string, signal: AbortSignal, keep: Map<string, any>, episode: import("../episode.js").Episode}} context */
export function files({ id, signal, keep, episode }) {
  const crumbs = h("nav.path", { "aria-label": "Path" }), list = h("div.table-box"), preview = h("div.preview"), said = h("div"), picker = /** @type {HTMLInputElement} */ (h("input", { type: "file", multiple: true, hidden: true, "aria-label": "Files to upload" }));
  let folder = keep.get(`folder-${id}`) ?? ".", shown = "", address = "";
  /** @type {any[]} */
  let entries = [];
  const root = h("section.files", h("div.tools", crumbs, h("span.grow"), button("Upload", { onclick: () => picker.click() }), picker, button("New directory", { onclick: make }), button("Download as tar", { onclick: () => fetchFile(API + path(["sandboxes", id, "files", "archive"], { path: folder }), `${folder.split("/").pop() || "root"}.tar`) })), said, h("div.split2", list, preview), h("p.note.drop", "Drop files anywhere on this tab to upload them. A file is replaced only after you agree."));

  /** @param {string} to */
  async function open(to) {
    const late = setTimeout(() => replace(list, loading("the directory", skeleton(8))), 300);
    try {
      const found = await get(path(["sandboxes", id, "files", "list"], { path: to }), signal);
      folder = to === "." ? await where() : to;
      keep.set(`folder-${id}`, folder);
      entries = found.files.sort((a, b) => (a.type === b.type ? (a.name < b.name ? -1 : 1) : a.type === "directory" ? -1 : 1));
      show();
    } catch (error) {
      if (error instanceof Problem) { replace(list, problem(error, () => open(to), error.code === "agent_unreachable" ? undefined : "This directory could not be read")); if (to !== "/") add(list, h("p.pad", button("Open /", { onclick: () => open("/") }))); }
    } finally { clearTimeout(late); }
  }
  /** One operation on a file, over the session of the page. @param {string} op @param {string} at @param {Record<string, any>} [more] @returns {Promise<Map<string, any>>} Throws Problem. */
  const ask = (op, at, more = {}) => new Promise((resolve, reject) => {
    episode.attach().open("fs", { op, path: at, ...more }, { ended: resolve, failed: (error) => reject(new Problem(400, { detail: error.message, code: error.code, fault: "caller", retryable: false })) });
  });
  /** The working directory of the sandbox, which a relative path starts from. @returns {Promise<string>} */
  const where = () => ask("stat", ".").then((result) => String(result.get("entry")?.get?.("path") ?? "/"), () => "/");
  function make() {
    const said = saying(), name = text("", { cls: "mono" });
    dialog("New directory", h("div.form", field("Name", name, `in ${folder}`), said), [["Create directory", "primary", async () => {
      const wanted = name.value.trim();
      if (!wanted || wanted.includes("/")) { replace(said, "Give it a name without /."); return false; }
      try { await ask("mkdir", join(folder, wanted), { exist_ok: false }); open(folder); return true; } catch (error) { if (error instanceof Problem) replace(said, safe(error.message)); return false; }
    }]]);
  }
  function show() {
    const parts = folder.split("/").filter(Boolean), go = (to) => (e) => { e.preventDefault(); open(to); };
    replace(crumbs, h("a.link.mono", { href: "#", onclick: go("/") }, "/"), parts.map((part, i) => [i ? h("span", "/") : null, h("a.link.mono", { href: "#", onclick: go(`/${parts.slice(0, i + 1).join("/")}`) }, safe(part))]));
    const up = folder === "/" ? [] : [h("tr", h("td.cut", icon("folder"), h("a.link.mono", { href: "#", onclick: go(`/${parts.slice(0, -1).join("/")}`) }, "..")), h("td.num"), h("td.num.lg"))];
    const row = (entry) => h("tr", { cls: entry.name === shown ? "on" : "" }, h("td.cut", icon(entry.type === "directory" ? "folder" : "file"), h("a.link.mono", { href: "#", onclick: (e) => { e.preventDefault(); if (entry.type === "directory") open(join(folder, entry.name)); else look(entry); } }, safe(entry.name))), h("td.num", entry.type === "directory" ? "" : bytes(entry.size)), h("td.num.lg", entry.modified ? `${age(Math.max(Date.now() / 1000 - Date.parse(`${entry.modified}Z`) / 1000, 0))} ago` : ""));
    if (!entries.length) replace(list, up.length ? h("table.table", h("tbody", up)) : null, empty("This directory is empty", "Drop files here to upload them, or copy them from a terminal.", command(`holdfast cp src ${id}:${folder}/`)));
    else replace(list, h("table.table", h("thead", h("tr", h("th", { scope: "col" }, "Name"), h("th.num", { scope: "col" }, "Size"), h("th.num.lg", { scope: "col" }, "Changed"))), h("tbody", up, entries.map(row))));
  }
  const address_ = (entry) => path(["sandboxes", id, "files", "content"], { path: join(folder, entry.name) });
  async function look(entry) {
    shown = entry.name;
    show();
    const about = h("span.note.lg", bytes(entry.size)), title = h("header", h("b.mono", safe(entry.name)), about, h("div.actions", button("Download", { onclick: () => fetchFile(API + address_(entry), entry.name) })));
    ask("stat", join(folder, entry.name)).then((result) => { const known = result.get("entry"); add(about, ` · ${Number(known?.get("mode") ?? 0).toString(8).padStart(4, "0")} user ${Number(known?.get("uid") ?? 0)}`); }, () => {});
    if (entry.size > SHOWN_BYTES) { replace(preview, title, h("p.pad.note", `${bytes(entry.size)} are too large to show here.`)); return; }
    try {
      const data = await bytesOf(address_(entry), signal), type = IMAGES[entry.name.split(".").pop()?.toLowerCase() ?? ""];
      if (shown !== entry.name) return;
      URL.revokeObjectURL(address);
      if (type) {
        address = URL.createObjectURL(new Blob([/** @type {any} */ (data)], { type }));
        const picture = h("img", { src: address, alt: `Image ${entry.name}` });
        picture.addEventListener("error", () => replace(preview, title, h("p.pad.note", "This is no image that the browser can show.")));
        replace(preview, title, picture);
      } else if (isText(data)) {
        const lines = new TextDecoder().decode(data).split("\n");
        replace(preview, title, h("pre.out", { tabindex: 0, "aria-label": `Content of ${entry.name}` }, lines.slice(0, LINES).map((line, i) => h("span.ln", h("span.lno", { "aria-hidden": "true" }, i + 1), safe(line), "\n")), lines.length > LINES ? h("span.esc", `${lines.length - LINES} lines more`) : null));
      } else replace(preview, title, h("p.pad.note", "This file is not text. Download it to open it."));
    } catch (error) { if (error instanceof Problem) replace(preview, title, problem(error)); }
  }
  /** @param {File[]} chosen */
  async function upload(chosen) {
    const there = chosen.filter((file) => entries.some((entry) => entry.name === file.name));
    if (there.length && !await agree(there)) return;
    const into = folder;
    for (const file of chosen) {
      const gone = new AbortController(), bar = h("i"), sent = h("span.num", bytes(0)), line = h("div.upload-row", h("span.mono.c-where", safe(file.name)), h("div.track", { role: "progressbar", "aria-label": `Upload of ${file.name}`, "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": 0 }, bar), h("span.row", sent, button("Cancel", { kind: "small", onclick: () => gone.abort() })));
      add(said, line);
      try {
        await send("PUT", path(["sandboxes", id, "files", "content"], { path: join(into, file.name) }), file, (done) => {
          const part = file.size ? done / file.size * 100 : 100;
          bar.style.width = `${part}%`;
          bar.parentElement?.setAttribute("aria-valuenow", String(Math.round(part)));
          replace(sent, `${bytes(done)} of ${bytes(file.size)}`);
        }, AbortSignal.any([gone.signal, signal]));
        toast(`${safe(file.name).textContent} is uploaded`);
      } catch (error) { if (error instanceof Problem) dialog("The file was not uploaded", [h("p", safe(file.name, "span", "mono")), problem(error)]); }
      line.remove();
    }
    open(folder);
  }
  /** @param {File[]} there @returns {Promise<boolean>} */
  const agree = (there) => new Promise((resolve) => {
    const node = dialog(there.length === 1 ? `Replace ${there[0].name}?` : `Replace ${there.length} files?`, h("p", safe(`${there.map((file) => file.name).join(", ")} exists in ${folder}. Its content is lost.`)), [[there.length === 1 ? "Replace file" : "Replace files", "danger fill", () => { resolve(true); }]]);
    node.addEventListener("close", () => resolve(false));
  });
  picker.addEventListener("change", () => { upload([...(picker.files ?? [])]); picker.value = ""; });
  root.addEventListener("dragover", (e) => { e.preventDefault(); root.classList.add("dropping"); });
  root.addEventListener("dragleave", (e) => { if (!root.contains(/** @type {Node|null} */ (e.relatedTarget))) root.classList.remove("dropping"); });
  root.addEventListener("drop", (e) => { e.preventDefault(); root.classList.remove("dropping"); upload([...(e.dataTransfer?.files ?? [])]); });
  signal.addEventListener("abort", () => URL.revokeObjectURL(address));
  replace(preview, h("p.pad.note", "Choose a file to look at it."));
  open(folder);
  return root;
}
