// The lines of a recording (GET /recordings/{id}/lines) as commands and as what appears when. Owns how lines are read and in which order they are
// shown, and the forms of the export. Pure: no requests and no nodes. All content is the sandbox's: lines are never trusted to be well formed.

const MOST_S = 30 * 86400;
const FIRST = new Set(["recording_started", "branched"]);

/**
 * @typedef {Object} Recorded one command
 * @property {number} n from 1
 * @property {string} id
 * @property {string} kind `command`, `run` or `terminal`
 * @property {string} where
 * @property {string} text
 * @property {number} at seconds after the beginning
 * @property {number|null} dur null until its end is recorded
 * @property {number|null} exit
 * @property {string} signal
 * @property {string} reason
 * @property {number|null} cpu
 * @property {string} out
 * @property {string} err
 * @property {{t: number, text?: string, rows?: number, cols?: number}[]} screen of a terminal: what its screen got
 */
/** @typedef {{t: number, n: number, kind: "prompt"|"out"|"err"|"screen"|"exit"|"mark"|"end", text: string, fault: string}} Frame `n` is the command's number, 0 for none */
/** @typedef {{at: number, dur: number, kind: string, text: string}} Mark */

/** @param {any} value @returns {string} */
const text = (value) => (typeof value === "string" ? value : "");
/** @param {any} value @param {number} most @returns {number|null} */
const whole = (value, most) => (Number.isInteger(value) && value > 0 && value <= most ? value : null);
/** @param {string} packed @returns {Uint8Array} */
function unpacked(packed) {
  try { return Uint8Array.from(atob(packed), (c) => c.charCodeAt(0)); } catch { return new Uint8Array(); }
}

export class Recording {
  /** @param {boolean} [whole] whether each line and each output is also kept as a whole, for the export */
  constructor(whole = false) {
    this.whole = whole;
    /** @type {Recorded[]} */
    this.commands = [];
    /** @type {Frame[]} */
    this.frames = [];
    /** @type {Mark[]} */
    this.marks = [];
    /** Bytes that were read; the next read begins there. */
    this.bytes = 0;
    this.start = NaN;
    this.last = 0;
    /** Where the sandbox's end is recorded: its cause. @type {{reason: string, fault: string, message: string}|null} */
    this.end = null;
    /** Every line with its time after the beginning, if the whole is kept. @type {any[]} */
    this.lines = [];
    this.rest = "";
    this.decoder = new TextDecoder();
    /** @type {Map<string, {command: Recorded, decoders: TextDecoder[]}>} */
    this.running = new Map();
    /** @type {Map<string, number>} */
    this.seen = new Map();
    /** @type {number|null} */
    this.lostAt = null;
  }

  /** @param {Uint8Array} data the next bytes of the file; a line may be cut off at their end */
  take(data) {
    this.bytes += data.length;
    const rows = (this.rest + this.decoder.decode(data, { stream: true })).split("\n");
    this.rest = rows.pop() ?? "";
    for (const row of rows) this.row(row);
  }

  /** @param {string} row */
  row(row) {
    let line;
    try { line = JSON.parse(row); } catch { return; } // it was cut off where a gateway ended
    if (!line || typeof line !== "object" || Array.isArray(line) || typeof line.type !== "string") return;
    if (typeof line.epoch === "string" && Number.isInteger(line.n)) {
      if ((this.seen.get(line.epoch) ?? -1) >= line.n) return; // written twice, when another gateway took over
      this.seen.set(line.epoch, line.n);
    }
    this.line(line);
  }

  /** @param {any} line */
  line(line) {
    const time = Number.isFinite(line.time) ? line.time : this.start + this.last;
    if (!Number.isFinite(this.start)) this.start = Number.isFinite(time) ? time : 0;
    // The clocks of the service and of the sandbox differ, and the sandbox's may say anything: time never goes back.
    this.last = Math.min(Math.max(this.last, time - this.start || 0), this.last + MOST_S);
    if (this.whole) this.lines.push({ line, t: this.last });
    const t = this.last, id = text(line.id);
    if (line.type === "command_started") this.started(t, id, line);
    else if (line.type === "command_ended") this.ended(t, id, line);
    else if (line.type === "output") this.output(t, id, line);
    else if (line.type === "resized") {
      const one = this.running.get(id), rows = whole(line.rows, 1000), cols = whole(line.cols, 1000);
      if (one && rows && cols) one.command.screen.push({ t, rows, cols });
    } else if (line.type === "sandbox_ended") {
      this.end = { reason: text(line.reason), fault: text(line.fault), message: text(line.message) };
      this.frame(t, 0, "end", this.end.message || this.end.reason, this.end.fault);
    } else this.mark(t, line);
  }

  /** @param {number} t @param {any} line */
  mark(t, line) {
    if (line.type === "lost") this.lostAt = t;
    else if (line.type === "resumed" && this.lostAt !== null) {
      this.marks.push({ at: this.lostAt, dur: t - this.lostAt, kind: "reconnect", text: `Connection lost for ${(t - this.lostAt).toFixed(1)} s, and resumed. Nothing was lost.` });
      this.frame(t, 0, "mark", this.marks[this.marks.length - 1].text);
      this.lostAt = null;
    } else if (line.type === "gap") {
      this.marks.push({ at: t, dur: 0, kind: "gap", text: `Something is missing here: ${text(line.message)}` });
      this.frame(t, 0, "mark", this.marks[this.marks.length - 1].text);
    } else if (line.type === "branched") this.frame(t, 0, "mark", `Branched here from ${text(line.parent)}`);
    else if (line.type === "files_written") this.frame(t, 0, "mark", `A client wrote ${text(line.path) || "files"}`);
    if (FIRST.has(line.type)) this.running.clear(); // what ran in the parent ended there
  }

  /** @param {number} t @param {string} id @param {any} line */
  started(t, id, line) {
    if (this.running.has(id)) return; // its first line was written twice
    const kind = text(line.kind) || "command", whatever = typeof line.command_b64 === "string" ? new TextDecoder().decode(unpacked(line.command_b64)) : text(line.command) || text(line.line);
    /** @type {Recorded} */
    const one = { n: this.commands.length + 1, id, kind, where: kind === "run" ? `shell ${text(line.shell)}` : kind === "terminal" ? "terminal" : "exec", text: kind === "terminal" && !whatever ? `terminal ${id}` : whatever, at: t, dur: null, exit: null, signal: "", reason: "", cpu: null, out: "", err: "", screen: [] };
    if (kind === "terminal") one.screen.push({ t, rows: whole(line.rows, 1000) ?? 24, cols: whole(line.cols, 1000) ?? 80 });
    this.commands.push(one);
    this.running.set(id, { command: one, decoders: [new TextDecoder(), new TextDecoder()] });
    this.frame(t, one.n, "prompt", one.text);
  }

  /** @param {number} t @param {string} id @param {any} line */
  output(t, id, line) {
    const one = this.running.get(id);
    if (!one) return;
    const { command, decoders } = one, isError = line.stream === 2;
    const data = typeof line.data_b64 === "string" ? unpacked(line.data_b64) : new TextEncoder().encode(text(line.data)), shown = decoders[isError ? 1 : 0].decode(data, { stream: true });
    if (!shown) return;
    if (this.whole) command[isError ? "err" : "out"] += shown;
    if (command.kind === "terminal") command.screen.push({ t, text: shown });
    this.frame(t, command.n, command.kind === "terminal" ? "screen" : isError ? "err" : "out", shown);
  }

  /** @param {number} t @param {string} id @param {any} line */
  ended(t, id, line) {
    const one = this.running.get(id)?.command;
    if (!one) return;
    this.running.delete(id);
    const dur = Number.isFinite(line.duration_s) ? Math.min(Math.max(line.duration_s, 0), t - one.at) : t - one.at;
    Object.assign(one, { dur, exit: Number.isInteger(line.exit_code) ? line.exit_code : null, signal: text(line.signal), reason: text(line.reason), cpu: Number.isFinite(line.cpu_s) ? line.cpu_s : null });
    if (one.exit !== 0) this.frame(t, one.n, "exit", one.exit === null ? one.reason || "outcome unknown" : `exit ${one.exit}${one.reason === "timeout" ? " (time limit)" : one.signal ? ` (${one.signal})` : ""}`, one.exit === null && !one.reason ? "infrastructure" : "workload");
  }

  /** @param {number} t @param {number} n @param {Frame["kind"]} kind @param {string} shown @param {string} [fault] */
  frame(t, n, kind, shown, fault = "") { this.frames.push({ t, n, kind, text: shown, fault }); }

  /** The length in seconds. */
  get length() { return Math.max(this.last, 0.001); }

  /** How many of `list`, which is in the order of time, are not later than `t`. @param {{t?: number, at?: number}[]} list @param {number} t */
  static until(list, t) {
    let low = 0, high = list.length;
    while (low < high) { const mid = (low + high) >> 1; if ((list[mid].t ?? list[mid].at ?? 0) <= t) low = mid + 1; else high = mid; }
    return low;
  }
}

/** @param {Recorded} c @param {boolean} over whether the recording is complete @returns {"running"|"unknown"|"ok"|"failed"} */
export const outcome = (c, over) => (c.dur === null ? (over ? "unknown" : "running") : c.exit === 0 ? "ok" : c.exit === null ? "unknown" : "failed");

const crlf = (data) => data.replace(/\r\n/g, "\n").replace(/\n/g, "\r\n");
const TOOLS = [{ type: "function", function: { name: "bash", description: "Run a command in the sandbox", parameters: { type: "object", properties: { command: { type: "string" } }, required: ["command"] } } }];
/** @param {any} line */
const content = (line) => (typeof line.data_b64 === "string" ? new TextDecoder().decode(unpacked(line.data_b64)) : text(line.data));

/** An asciicast, version 2, as `holdfast replay --export asciicast` writes it. @param {Recording} recording whole @param {string} title */
export function asciicast(recording, title) {
  const { lines, start } = recording, first = lines.find(({ line }) => line.type === "command_started" && "rows" in line)?.line ?? {};
  const rows = [JSON.stringify({ version: 2, width: first.cols || 80, height: first.rows || 24, timestamp: Math.floor(start || 0), title })], terminals = new Map();
  for (const { line, t } of lines) {
    let code = "o", shown = "";
    if (line.type === "command_started") {
      terminals.set(line.id, line.kind === "terminal");
      shown = `$ ${crlf(typeof line.command_b64 === "string" ? new TextDecoder().decode(unpacked(line.command_b64)) : text(line.command) || text(line.line))}\r\n`;
    } else if (line.type === "output") shown = terminals.get(line.id) ? content(line) : crlf(content(line));
    else if (line.type === "input") [code, shown] = ["i", content(line)];
    else if (line.type === "resized") [code, shown] = ["r", `${line.cols}x${line.rows}`];
    else if (["gap", "branched", "sandbox_ended"].includes(line.type)) [code, shown] = ["m", `${line.type}: ${line.message || line.parent || ""}`];
    if (shown) rows.push(JSON.stringify([Math.round(t * 1e6) / 1e6, code, shown]));
  }
  return `${rows.join("\n")}\n`;
}
/** One line of JSON with the columns of the recipes, as `holdfast replay --export messages` writes it. @param {Recording} recording whole @param {string} id */
export function messages(recording, id) {
  const found = recording.commands.filter((one) => one.reason !== "not_started").flatMap((one) => [
    { role: "assistant", content: "", tool_calls: [{ id: one.id, type: "function", function: { name: "bash", arguments: JSON.stringify({ command: one.text }) } }] },
    { role: "tool", tool_call_id: one.id, content: one.out + one.err + (one.exit === 0 ? "" : one.dur === null ? "\n[not ended]" : `\n[exit code ${one.exit ?? "None"}]`) },
  ]);
  return `${JSON.stringify({ messages: found, tools: JSON.stringify(TOOLS), metadata: { recording_id: id } })}\n`;
}
