// The form that creates a sandbox. It always shows the command that does the same, to learn from and to copy.
import { call, get } from "../api.js";
import { h, replace } from "../dom.js";
import { checkbox, choice, field, quote, refused, sameCommand, saying, text as textField } from "../forms.js";
import { live } from "../live.js";
import { dialog, toast } from "../parts.js";

/** @param {(to: string) => void} go */
export function create(go) {
  const text = (value, more = {}) => textField(value, { oninput: show, ...more });
  const same = sameCommand(), names = h("datalist", { id: "images" }), said = saying();
  const image = text("host", { list: "images", cls: "mono" }), id = text("", { placeholder: "generated" }), cpu = text("", { placeholder: "default" }), memory = text("", { placeholder: "default" });
  const lifetime = choice([["", "The default"], ["3600", "1 h"], ["600", "10 min"]], "", show), network = choice([["", "None"], ["internet", "Internet"]], "", show);
  const record = checkbox(false, show);
  function show() {
    same.show(["holdfast create", id.value && `--name ${quote(id.value)}`, cpu.value && `--cpu ${quote(cpu.value)}`, memory.value && `-m ${quote(memory.value)}`, lifetime.value && `--lifetime ${lifetime.value}`, network.value && `--network ${network.value}`, record.checked && "--record", quote(image.value)]);
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
      return refused(said, error);
    }
  }
  dialog("New sandbox", h("div.form", field("Image", image), names, h("div.form2", field("CPU", cpu, "cores"), field("Memory", memory), field("Id", id), field("Lifetime", lifetime), field("Network", network), h("label.check", record, h("span", "Record it ", h("span.note", "to replay later")))), said, same.node), [["Create sandbox", "primary", send]]);
}
