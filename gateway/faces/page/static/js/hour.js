// The last hour in minutes, from what the page knows of sandboxes and commands. Owns the sums behind the charts of the overview.
import { isOrdinary } from "./live.js";

export const MINUTES = 60;
/** @typedef {import("./live.js").Sandbox} Sandbox */

/** @param {number[]} sorted @param {number} part */
const quantile = (sorted, part) => (sorted.length ? sorted[Math.min(Math.floor(part * sorted.length), sorted.length - 1)] : NaN);
/** The minute of a time, the last being 59; -1 if it is older. @param {number} at @param {number} now */
const minute = (at, now) => { const back = Math.floor((now - at) / 60); return back >= 0 && back < MINUTES ? MINUTES - 1 - back : -1; };

/** @param {Sandbox[]} all @param {number} now */
export function creates(all, now) {
  const counts = new Array(MINUTES).fill(0), times = Array.from({ length: MINUTES }, () => /** @type {number[]} */ ([]));
  for (const one of all) {
    const at = one.ready === null ? -1 : minute(one.ready, now);
    if (at < 0) continue;
    counts[at] += 1;
    if (one.created !== null && one.ready !== null) times[at].push((one.ready - one.created) * 1000);
  }
  const carried = (part) => { let last = NaN; return times.map((list) => { if (list.length) last = quantile(list.sort((a, b) => a - b), part); return last; }); };
  return { counts, p50: carried(0.5), p99: carried(0.99) };
}
/** Ends and failures with a fault: by cause, and in each two minutes. @param {Sandbox[]} all @param {number} now */
export function faults(all, now) {
  /** @type {Map<string, {reason: string, fault: string, times: number, last: Sandbox}>} */
  const causes = new Map();
  const columns = Array.from({ length: MINUTES / 2 }, (_, i) => ({ at: new Date((now - (MINUTES - 2 * i) * 60) * 1000).toISOString().slice(11, 16), parts: { caller: 0, workload: 0, infrastructure: 0 } }));
  for (const one of all) {
    if ((one.status !== "ended" && one.status !== "failed") || !one.reason || isOrdinary(one) || !["caller", "workload", "infrastructure"].includes(one.fault)) continue;
    const ended = one.ended ?? one.record?.ended_at ?? one.created ?? now, at = minute(ended, now);
    if (at < 0) continue;
    columns[Math.floor(at / 2)].parts[one.fault] += 1;
    const key = `${one.fault} ${one.reason}`, known = causes.get(key);
    if (!known) causes.set(key, { reason: one.reason, fault: one.fault, times: 1, last: one });
    else { known.times += 1; if ((known.last.ended ?? 0) <= (one.ended ?? 0)) known.last = one; }
  }
  const order = ["infrastructure", "workload", "caller"];
  return { columns, causes: [...causes.values()].sort((a, b) => order.indexOf(a.fault) - order.indexOf(b.fault) || b.times - a.times) };
}
/** Commands a second in each minute; NaN before the page began to follow them. @param {{at: number, count: number}[]} seen @param {number} now @param {number} since */
export function rate(seen, now, since) {
  const counts = new Array(MINUTES).fill(0);
  for (const { at, count } of seen) { const k = minute(at, now); if (k >= 0) counts[k] += count; }
  const first = minute(since, now);
  return counts.map((n, i) => (i < first ? NaN : n / 60));
}
/** The times under an axis of the last hour. @param {number} now */
export const ticks = (now) => [60, 45, 30, 15].map((back) => new Date((now - back * 60) * 1000).toISOString().slice(11, 16)).concat("now");
