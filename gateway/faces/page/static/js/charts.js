// Charts as inline SVG: lines with a shared cursor, stacked columns, sparklines, meters. Colours come from classes in style.css.
import { h, s } from "./dom.js";

/** A line through the values; what is not known has none. */
const path = (values, x, y) => values.map((v, i) => (Number.isFinite(v) ? `${Number.isFinite(values[i - 1]) ? "L" : "M"}${x(i).toFixed(1)} ${y(v).toFixed(1)}${Number.isFinite(values[i - 1]) || Number.isFinite(values[i + 1]) ? "" : "m-5 0h5"}` : "")).join("");
const highest = (values) => Math.max(...values.filter(Number.isFinite));
function nice(max) {
  const unit = 10 ** Math.floor(Math.log10(max));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((m) => m * unit).find((m) => m >= max) ?? 10 * unit;
}
export function spark(all, max, { width = 64, height = 16, label = "" } = {}) {
  const values = all.length > 1 ? all : [all[0], all[0]], x = (i) => i / (values.length - 1) * width, y = (v) => height - 1 - Math.min(v / max, 1) * (height - 2);
  return s("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, width, height, preserveAspectRatio: "none", role: "img", "aria-label": label },
    s("path", { class: "spark-base", d: `M0 ${height - 0.5}H${width}` }), s("path", { class: "spark-line", d: path(values, x, y), "vector-effect": "non-scaling-stroke" }));
}
/** Lines over the last hour; what is not known is NaN, and drawn as nothing. `series`: [{name, values, cls}]; the last value stands beside the name; one cursor for all charts of a page. */
export function lineChart({ title, unit, series, ticks, format = String, axis = format, bottom = 0, log = false }) {
  const W = 420, H = 128, top = highest(series.flatMap((line) => line.values)), max = log ? 10 ** Math.ceil(Math.log10(top)) : nice(top * 1.05), n = series[0].values.length;
  const marks = log ? Array.from({ length: Math.round(Math.log10(max)) + 1 }, (_, i) => max / 10 ** i) : [max, (max + bottom) / 2, bottom];
  const x = (i) => i / (n - 1) * W, y = (v) => (log ? H - Math.log10(Math.max(v, 1)) / Math.log10(max) * H : H - (v - bottom) / (max - bottom) * H);
  const shown = (v) => (Number.isFinite(v) ? format(v) : "–");
  const legend = h("div.legend", series.map((line) => h("span", { cls: `key ${line.cls}` }, h("i"), line.name, " ", h("b", shown(line.values[n - 1])))));
  const cursor = s("path", { class: "cursor", d: `M0 0V${H}`, visibility: "hidden", "vector-effect": "non-scaling-stroke" });
  const svg = s("svg", { class: "plot", viewBox: `0 0 ${W} ${H}`, preserveAspectRatio: "none", role: "img",
    "aria-label": `${title}: ${series.map((l) => `${l.name} now ${shown(l.values[n - 1])}, highest ${shown(highest(l.values))}`).join("; ")}` },
    marks.map((v) => s("path", { class: "grid", d: `M0 ${y(v)}H${W}`, "vector-effect": "non-scaling-stroke" })),
    [...series].reverse().map((line) => s("path", { class: `line ${line.cls}`, d: path(line.values, x, y), "vector-effect": "non-scaling-stroke" })), cursor);
  const fig = h("figure.chart", h("figcaption", h("h2", title), h("span.note", unit)), legend,
    h("div.plot-box", h("div.y", marks.map((v) => h("span", axis(v)))), svg),
    h("div.x", ticks.map((t) => h("span", t))));
  const show = (i) => {
    cursor.setAttribute("visibility", i === null ? "hidden" : "visible");
    if (i !== null) cursor.setAttribute("d", `M${x(i)} 0V${H}`);
    series.forEach((line, k) => { legend.children[k].querySelector("b").textContent = shown(line.values[i ?? n - 1]); });
  };
  svg.addEventListener("pointermove", (e) => {
    const box = svg.getBoundingClientRect();
    document.dispatchEvent(new CustomEvent("chart-cursor", { detail: Math.round((e.clientX - box.left) / box.width * (n - 1)) }));
  });
  svg.addEventListener("pointerleave", () => document.dispatchEvent(new CustomEvent("chart-cursor", { detail: null })));
  const listen = (e) => (fig.isConnected ? show(e.detail) : document.removeEventListener("chart-cursor", listen));
  document.addEventListener("chart-cursor", listen);
  return fig;
}
/** Stacked columns over time. `columns`: [{at, parts: {key: n}}]; `order` from bottom to top. */
export function stackedColumns({ columns, order, label }) {
  const W = 720, H = 112, step = W / columns.length, max = 2 * Math.ceil(nice(Math.max(...columns.map((c) => order.reduce((a, k) => a + c.parts[k], 0)), 1)) / 2);
  return h("div.plot-box", h("div.y", [max, max / 2, 0].map((v) => h("span", v))),
    s("svg", { class: "plot", viewBox: `0 0 ${W} ${H}`, preserveAspectRatio: "none", role: "img", "aria-label": label },
      [0, 0.5, 1].map((f) => s("path", { class: "grid", d: `M0 ${H * f}H${W}`, "vector-effect": "non-scaling-stroke" })),
      columns.map((c, i) => {
        let top = H;
        return s("g", {}, s("title", {}, `${c.at}: ${order.map((k) => `${c.parts[k]} ${k}`).join(", ")}`), order.map((k) => {
          const tall = c.parts[k] / max * H;
          top -= tall;
          return tall ? s("rect", { class: `bar f-${k}`, x: i * step + 1, width: step - 2, y: top, height: Math.max(tall - 0.75, 0.5) }) : null;
        }));
      })));
}
/** One bar, full width, split in parts: [{cls, value, title}]. */
export const splitBar = (parts, label) => h("div.split", { role: "img", "aria-label": label },
  parts.filter((p) => p.value).map((p) => h("i", { cls: p.cls, title: p.title, style: { "flex-grow": p.value } })));
/** Used of a limit; `calm`: over it is no fault. */
export function meter(name, used, limit, format, note, calm = false) {
  const part = Math.min(used / limit, 1);
  return h("div.meter", h("div.meter-text", h("span", name), h("span.num", h("b", format(used)), ` of ${format(limit)}`)),
    h("div.track", { role: "meter", "aria-valuenow": Math.round(part * 100), "aria-valuemin": 0, "aria-valuemax": 100, "aria-label": `${name}, percent used` }, h("i", { cls: part > 0.9 && !calm ? "high" : "", style: { width: `${part * 100}%` } })),
    note ? h("p.note", note) : null);
}
