// Files of a sandbox: browse, view text and images, upload, download. Names and contents are hostile text: text nodes, or images from bytes.
import { Problem, call, get, path } from "../api.js";
import { add, h, replace, safe, bytes, age } from "../dom.js";
import { save } from "../downloads.js";
import { button, command, dialog, empty, icon, loading, problem, skeleton, toast } from "../parts.js";

const SHOWN_BYTES = 512 * 1024;
const UPLOAD_BYTES = 20 * 1024 * 1024;
const IMAGES = { png: "image/png", jpg: "image/jpeg", jpeg: "image/jpeg", gif: "image/gif", webp: "image/webp" };
const LINES = 5000;

const join = (folder, name) => (folder === "/" ? `/${name}` : `${folder}/${name}`);
/** @param {string} text base64 */
const decode = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
/** @param {Uint8Array} data */
function encode(data) {
  let text = "";
  for (let at = 0; at < data.length; at += 32768) text += String.fromCharCode(...data.subarray(at, at + 32768));
  return btoa(text);
}
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
  const root = h("section.files", h("div.tools", crumbs, h("span.grow"), button("Upload", { onclick: () => picker.click() }), picker), said, h("div.split2", list, preview), h("p.note.drop", "Drop files anywhere on this tab to upload them. A file is replaced only after you agree."));

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
  /** The working directory of the sandbox, which a relative path starts from. @returns {Promise<string>} */
  function where() {
    return new Promise((resolve) => {
      episode.attach().open("fs", { op: "stat", path: "." }, { ended: (result) => resolve(String(result.get("entry")?.get?.("path") ?? "/")), failed: () => resolve("/") });
    });
  }
  function show() {
    const parts = folder.split("/").filter(Boolean), go = (to) => (e) => { e.preventDefault(); open(to); };
    replace(crumbs, h("a.link.mono", { href: "#", onclick: go("/") }, "/"), parts.map((part, i) => [i ? h("span", "/") : null, h("a.link.mono", { href: "#", onclick: go(`/${parts.slice(0, i + 1).join("/")}`) }, safe(part))]));
    const up = folder === "/" ? [] : [h("tr", h("td.cut", icon("folder"), h("a.link.mono", { href: "#", onclick: go(`/${parts.slice(0, -1).join("/")}`) }, "..")), h("td.num"), h("td.num.lg"))];
    const row = (entry) => h("tr", { cls: entry.name === shown ? "on" : "" }, h("td.cut", icon(entry.type === "directory" ? "folder" : "file"), h("a.link.mono", { href: "#", onclick: (e) => { e.preventDefault(); if (entry.type === "directory") open(join(folder, entry.name)); else look(entry); } }, safe(entry.name))), h("td.num", entry.type === "directory" ? "" : bytes(entry.size)), h("td.num.lg", entry.modified ? `${age(Math.max(Date.now() / 1000 - Date.parse(`${entry.modified}Z`) / 1000, 0))} ago` : ""));
    if (!entries.length) replace(list, up.length ? h("table.table", h("tbody", up)) : null, empty("This directory is empty", "Drop files here to upload them, or copy them from a terminal.", command(`holdfast cp src ${id}:${folder}/`)));
    else replace(list, h("table.table", h("thead", h("tr", h("th", { scope: "col" }, "Name"), h("th.num", { scope: "col" }, "Size"), h("th.num.lg", { scope: "col" }, "Changed"))), h("tbody", up, entries.map(row))));
  }
  /** @param {string} at @returns {Promise<Uint8Array>} */
  const read = async (at) => decode((await get(path(["sandboxes", id, "files"], { path: at }), signal)).content);
  async function download(entry) {
    try { save(await read(join(folder, entry.name)), entry.name); } catch (error) { if (error instanceof Problem) dialog("The file could not be read", problem(error)); }
  }
  async function look(entry) {
    shown = entry.name;
    show();
    const title = h("header", h("b.mono", safe(entry.name)), h("span.note.lg", bytes(entry.size)), h("div.actions", button("Download", { onclick: () => download(entry) })));
    if (entry.size > SHOWN_BYTES) { replace(preview, title, h("p.pad.note", `${bytes(entry.size)} are too large to show here.`)); return; }
    try {
      const data = await read(join(folder, entry.name)), type = IMAGES[entry.name.split(".").pop()?.toLowerCase() ?? ""];
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
    const large = chosen.filter((file) => file.size > UPLOAD_BYTES);
    if (large.length) dialog("Too large for the page", [h("p", safe(`${large.map((file) => file.name).join(", ")}: the page uploads files of at most ${bytes(UPLOAD_BYTES)}.`)), command(`holdfast cp ${large[0].name} ${id}:${folder}/`)]);
    for (const file of chosen.filter((one) => !large.includes(one))) {
      const line = h("p.note", `Uploading ${file.name}, ${bytes(file.size)}`);
      add(said, line);
      try { await call("POST", path(["sandboxes", id, "files"]), { path: join(folder, file.name), content: encode(new Uint8Array(await file.arrayBuffer())) }); toast(`${file.name} is uploaded`); } catch (error) { if (error instanceof Problem) dialog(`${file.name} was not uploaded`, problem(error)); }
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
