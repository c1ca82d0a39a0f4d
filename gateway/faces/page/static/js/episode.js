// The commands of one sandbox as the page knows them: the history that its agent reports, what events add to it, and the output that was read; of a
// sandbox that has ended, its recording. Owns their form, when they are read again, and the session that the sandbox's views share.
import { Problem, bytesOf, get, path, socket } from "./api.js";
import { live } from "./live.js";
import { Recording } from "./recording.js";
import { Session } from "./session.js";

/**
 * @typedef {Object} Command
 * @property {number} n
 * @property {string} id
 * @property {string} where
 * @property {string} [shell] its name, of a command in a shell
 * @property {string} text
 * @property {number} began seconds since the epoch
 * @property {number} at seconds after the sandbox was ready
 * @property {number|null} dur
 * @property {number|null} exit
 * @property {boolean} running
 * @property {string} signal
 * @property {string} reason
 * @property {number|null} cpu
 * @property {number} outBytes
 * @property {number} errBytes
 * @property {number} heldBytes
 * @property {Output|null} output
 */
/** @typedef {{out: string, err: string, gaps: {stream: number, at: number, bytes: number}[], state: "reading"|"whole"|"live"|"failed", error: string, of: Command}} Output */
/** @typedef {{at: number, dur: number, kind: string, text: string, detail: string}} Mark */

const AGAIN_MS = 250;
/** Of a long episode the history is read less often: events tell of each command meanwhile. */
const LONG = 200;
const LONG_AGAIN_MS = 3000;
const DRAW_MS = 120;
/** When a recording is complete after the end of its sandbox. */
const COMPLETE_MS = 1500;
const MOST_COMMANDS = 20000;
const KEPT_CHARACTERS = 400000;

export class Episode extends EventTarget {
  /** @param {string} id @param {AbortSignal} signal */
  constructor(id, signal) {
    super();
    this.id = id;
    this.signal = signal;
    /** @type {Command[]} */
    this.commands = [];
    /** @type {Mark[]} */
    this.marks = [];
    /** @type {"loading"|"here"|"failed"} */
    this.state = "loading";
    /** @type {Problem|null} */
    this.problem = null;
    /** @type {Session|null} */
    this.session = null;
    this.reading = false;
    this.again = false;
    live.addEventListener("event", (e) => {
      const { id: of, name } = /** @type {CustomEvent} */ (e).detail;
      if (of !== id) return;
      if (name.startsWith("command_")) this.note(name, /** @type {CustomEvent} */ (e).detail.facts);
      else if (name === "ready") this.soon();
      else if (name === "created") this.commands = []; // another sandbox with this id
      else if (name === "deleted") setTimeout(async () => { if (!signal.aborted && this.sandbox?.record?.recording && await this.fromRecording()) this.changed(); }, COMPLETE_MS);
      else if (["attached", "resumed", "lost", "detached"].includes(name)) this.mark(name, /** @type {CustomEvent} */ (e).detail.facts);
      else if (name === "usage") this.sample();
    }, { signal });
    live.addEventListener("state", () => { if (live.state === "live") this.soon(); }, { signal });
    signal.addEventListener("abort", () => { clearTimeout(this.timer); clearTimeout(this.drawing); this.session?.leave(); });
    this.timer = 0;
    this.drawing = 0;
    /** The names of shells in the order in which they were first used. @type {string[]} */
    this.shells = [];
    /** Of the times at which samples came, the cores and bytes in use. @type {{at: number, cpu: number, memory: number}[]} */
    this.samples = [];
    /** @type {{at: number, received: number}|null} */
    this.loss = null;
    this.read();
  }

  /** A client that attached, was lost, came back or left, as the sandbox reports it. @param {string} name @param {any} facts */
  mark(name, facts) {
    const at = Math.max(facts.time - this.began, 0);
    if (name === "lost") this.loss = { at, received: facts.received_bytes ?? 0 };
    if (name === "resumed" && this.loss) {
      const dur = Math.max(at - this.loss.at, 0);
      this.marks.push({ at: this.loss.at, dur, kind: "reconnect", text: `Connection lost for ${dur < 1 ? `${Math.round(dur * 1000)} ms` : `${dur.toFixed(1)} s`}`, detail: `A client resumed at byte ${(facts.received_bytes ?? 0).toLocaleString("en-US")}. Nothing was lost.` });
      this.loss = null;
      this.dispatchEvent(new Event("change"));
    }
  }

  sample() {
    const one = this.sandbox;
    if (!one?.cpuUse?.length || !one.memoryUse?.length) return;
    this.samples.push({ at: Date.now() / 1000 - this.began, cpu: one.cpuUse[one.cpuUse.length - 1], memory: one.memoryUse[one.memoryUse.length - 1] });
    if (this.samples.length > 2000) this.samples = this.samples.filter((_, i) => i % 2);
  }

  get sandbox() { return live.all.get(this.id); }
  get began() { return this.recorded ? this.recorded.start : this.sandbox?.ready ?? this.sandbox?.created ?? this.commands[0]?.began ?? Date.now() / 1000; }
  get until() { return this.recorded ? this.recorded.start + this.recorded.length : this.sandbox?.ended ?? Date.now() / 1000; }
  get length() { return this.commands.reduce((most, c) => Math.max(most, c.at + (c.dur ?? 0)), Math.max(this.until - this.began, 1)); }

  /** Reads the history soon, once for many events. */
  soon() { if (!this.timer) this.timer = window.setTimeout(() => { this.timer = 0; this.read(); }, this.commands.length > LONG ? LONG_AGAIN_MS : AGAIN_MS); }

  /** Says that something changed, once for many events. */
  changed() { if (!this.drawing) this.drawing = window.setTimeout(() => { this.drawing = 0; this.dispatchEvent(new Event("change")); }, DRAW_MS); }

  /** A command that started or ended, as an event tells it; the history is read a moment later. @param {string} name @param {any} facts */
  note(name, facts) {
    this.soon();
    if (this.state !== "here") return;
    const id = String(facts.command_id ?? ""), at = this.commands.map((c) => c.id).lastIndexOf(id);
    if (name === "command_started" && at < 0) {
      this.commands.push(this.command({ command_id: id, kind: facts.kind, shell: facts.shell, line: facts.line, started_at: facts.time, running: true, exit_code: null, cpu_s: null, stdout_bytes: 0, stderr_bytes: 0, held_bytes: 0 }, this.commands.length + 1));
      if (this.commands.length > 1 && this.commands[this.commands.length - 2].at > this.commands[this.commands.length - 1].at) this.order(this.commands);
    } else if (name === "command_ended" && at >= 0 && this.commands[at].running) {
      const c = this.commands[at];
      this.commands[at] = { ...c, running: false, dur: facts.duration_s ?? 0, exit: facts.exit_code ?? null, signal: facts.signal ?? "", reason: facts.reason ?? "", cpu: facts.cpu_s ?? null, outBytes: facts.stdout_bytes ?? c.outBytes, errBytes: facts.stderr_bytes ?? c.errBytes };
      if (c.output) c.output.of = this.commands[at];
    }
    this.changed();
  }

  async read() {
    if (this.reading) { this.again = true; return; }
    this.reading = true;
    try {
      const { commands } = await get(path(["sandboxes", this.id, "history"]), this.signal);
      this.take(commands);
      this.state = "here";
      this.problem = null;
    } catch (error) {
      if (!(error instanceof Problem)) return;
      this.problem = error;
      if (["sandbox_gone", "sandbox_not_found"].includes(error.code) && !this.commands.length && await this.fromRecording()) this.problem = null;
      else if (this.state === "loading") this.state = "failed";
      if (error.retryable && this.sandbox && this.sandbox.status !== "ended") setTimeout(() => { if (!this.signal.aborted) this.read(); }, 2000);
    } finally { this.reading = false; }
    if (this.again) { this.again = false; this.soon(); }
    this.dispatchEvent(new Event("change"));
  }

  /** What the history tells, which has the last thousand commands: those before, which this page has seen, stay. @param {any[]} rows */
  take(rows) {
    const known = new Map(this.commands.map((c) => [c.id, c])), told = new Set(rows.map((row) => row.command_id)), first = Math.min(...rows.map((row) => row.started_at ?? Infinity));
    const before = this.commands.filter((c) => !told.has(c.id) && (c.began < first || c.began > Date.now() / 1000 - 5)).slice(-MOST_COMMANDS);
    // An event may have told of the end of a command since the history was asked for.
    this.order([...before, ...rows.map((row) => { const old = known.get(row.command_id); return old && !old.running && row.running ? old : { ...this.command(row, 0), output: old?.output ?? null }; })]);
    for (const c of this.commands) if (c.output) c.output.of = c;
  }

  /** @param {Command[]} all */
  order(all) { this.commands = all.sort((a, b) => a.at - b.at).map((c, i) => (c.n === i + 1 ? c : { ...c, n: i + 1 })); }

  /** A row of the history. @param {any} row @param {number} n @returns {Command} */
  command(row, n) {
    const began = row.started_at ?? this.began, shell = row.kind === "run" ? String(row.shell ?? "") : undefined;
    if (shell !== undefined && !this.shells.includes(shell)) this.shells.push(shell);
    return { n, id: row.command_id, where: shell !== undefined ? `shell ${this.shells.indexOf(shell) + 1}` : row.kind === "terminal" ? "terminal" : "exec", shell, text: row.line ?? "", began, at: Math.max(began - this.began, 0), dur: row.running ? null : row.duration_s ?? 0, exit: row.exit_code ?? null, running: row.running, signal: row.signal ?? "", reason: row.reason ?? "", cpu: row.cpu_s ?? null, outBytes: row.stdout_bytes, errBytes: row.stderr_bytes, heldBytes: row.held_bytes, output: null };
  }

  /** The commands of a sandbox that has ended, with their output, from its recording. @returns {Promise<boolean>} whether there is one */
  async fromRecording() {
    try {
      const id = this.sandbox?.record?.recording ?? (await get(path(["recordings"], { sandbox: this.id }), this.signal)).recordings[0]?.recording_id;
      if (!id) return false;
      const whole = new Recording(true);
      await bytesOf(path(["recordings", id, "lines"]), this.signal, (piece) => whole.take(piece));
      this.recordingId = id;
      this.recorded = whole;
      const start = whole.start || 0, size = (text) => new TextEncoder().encode(text).length;
      this.commands = whole.commands.filter((c) => c.reason !== "not_started").map((c, i) => {
        const outBytes = size(c.out), errBytes = size(c.err), row = { command_id: c.id, kind: c.kind, shell: c.where.slice(6), line: c.text, started_at: start + c.at, duration_s: c.dur, running: c.dur === null, exit_code: c.exit, signal: c.signal, reason: c.reason, cpu_s: c.cpu, stdout_bytes: outBytes, stderr_bytes: errBytes, held_bytes: 0 };
        const made = this.command(row, i + 1);
        made.at = c.at;
        made.output = { out: c.kind === "terminal" ? "" : c.out, err: c.err, gaps: [], state: "whole", error: "", of: made };
        return made;
      });
      this.marks = whole.marks.map((m) => ({ ...m, detail: "" }));
      this.state = "here";
      return this.commands.length > 0;
    } catch (error) {
      if (!(error instanceof Problem) && !this.signal.aborted) throw error;
      return false;
    }
  }
  /** Its recording, if the commands are from there. @type {Recording|null} */
  recorded = null;
  recordingId = "";

  /** The session of this sandbox, which is attached when first needed. */
  attach() {
    this.session ??= new Session(socket(["sandboxes", this.id, "session"]), (state, why) => this.dispatchEvent(new CustomEvent("session", { detail: { state, why } })), () => this.whyRefused());
    return this.session;
  }

  /** Why no session can be made; "" if another try may work. @returns {Promise<string>} */
  async whyRefused() {
    try { await get(path(["sandboxes", this.id])); return ""; } catch (error) {
      const { code } = /** @type {Problem} */ (error);
      return ["sandbox_gone", "sandbox_not_found", "sandbox_failed", "scope_missing", "key_missing", "key_invalid"].includes(code) ? code : "";
    }
  }

  /** Reads a command's output, which comes as it is written while the command runs. @param {Command} command */
  follow(command) {
    if (command.output) return;
    /** @type {any} */
    const output = { out: "", err: "", gaps: [], state: "reading", error: "", of: command };
    command.output = output;
    const decoders = { 1: new TextDecoder(), 2: new TextDecoder() };
    const changed = () => { clearTimeout(output.timer); output.timer = setTimeout(() => this.dispatchEvent(new CustomEvent("output", { detail: output.of })), 60); };
    this.attach().open("follow", { id: command.id, keep: true }, {
      output: (data, stream, used) => {
        const name = stream === 2 ? "err" : "out";
        output[name] += decoders[stream === 2 ? 2 : 1].decode(data, { stream: true });
        const over = output[name].length - KEPT_CHARACTERS;
        if (over > 0) { output[name] = output[name].slice(over); output.gaps.push({ stream, at: 0, bytes: over }); }
        used();
        output.state = "live";
        changed();
      },
      gap: (bytes, stream) => { output.gaps.push({ stream, at: output[stream === 2 ? "err" : "out"].length, bytes }); changed(); },
      ended: () => { output.state = "whole"; changed(); this.soon(); },
      failed: (error) => { output.state = "failed"; output.error = error.code; changed(); },
    });
  }
}
