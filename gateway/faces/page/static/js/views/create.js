// The form that creates a sandbox. It always shows the command that does the same, to learn from and to copy.
import { Problem, call, get } from "../api.js";
import { h, replace } from "../dom.js";
import { live } from "../live.js";
import { command, dialog, toast } from "../parts.js";

const quote = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

/** @param {(to: string) => void} go */
export function create(go) {
  const field = (label, node, note) => h("label", h("span", label, note ? h("span.note", ` ${note}`) : null), node);
  const text = (value, more = {}) => /** @type {HTMLInputElement} */ (h("input.field", { type: "text", value, spellcheck: "false", autocomplete: "off", oninput: show, ...more }));
  const choice = (list) => /** @type {HTMLSelectElement} */ (h("select.field", { onchange: show }, list.map(([value, name]) => h("option", { value }, name))));
  const same = h("div"), names = h("datalist", { id: "images" }), said = h("p.f-caller", { role: "alert" });
  const image = text("host", { list: "images", cls: "mono" }), id = text("", { placeholder: "generated" }), cpu = text("", { placeholder: "default" }), memory = text("", { placeholder: "default" });
  const lifetime = choice([["", "The default"], ["3600", "1 h"], ["600", "10 min"]]), network = choice([["", "None"], ["internet", "Internet"]]);
  const record = /** @type {HTMLInputElement} */ (h("input", { type: "checkbox", onchange: show }));
  function show() {
    const words = ["holdfast create", id.value && `--name ${quote(id.value)}`, cpu.value && `--cpu ${quote(cpu.value)}`, memory.value && `-m ${quote(memory.value)}`, lifetime.value && `--lifetime ${lifetime.value}`, network.value && `--network ${network.value}`, record.checked && "--record", quote(image.value)];
    replace(same, command(words.filter(Boolean).join(" ")));
  }
  show();
  get("/images").then((found) => replace(names, found.images.map((one) => h("option", { value: one.name })))).catch(() => {});
  async function send() {
    const body = { image: image.value.trim(), sandbox_id: id.value.trim() || undefined, cpu: cpu.value.trim() || undefined, memory: memory.value.trim() || undefined, lifetime_s: lifetime.value ? Number(lifetime.value) : undefined, network: network.value ? { mode: network.value } : undefined, record: record.checked || undefined, exist_ok: false };
    try {
      const made = await call("POST", "/sandboxes", body);
      live.record(made);
      live.changed("list");
      toast(`${made.sandbox_id} is being created`);
      go(`sandboxes/${encodeURIComponent(made.sandbox_id)}/timeline`);
      return true;
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      replace(said, `${error.message}. ${error.hint}`);
      return false;
    }
  }
  dialog("New sandbox", h("div.form", field("Image", image), names, h("div.form2", field("CPU", cpu, "cores"), field("Memory", memory), field("Id", id), field("Lifetime", lifetime), field("Network", network), h("label.check", record, h("span", "Record it ", h("span.note", "to replay later")))), said, h("div", h("p.note", "The same as a command"), same)), [["Create sandbox", "primary", send]]);
}
