// The commands of one sandbox as the page knows them: the history that its agent reports, and the output that was read. Owns their form, when
// they are read again, and the session that the sandbox's views share.
import { Problem, get, path, socket } from "./api.js";
import { live } from "./live.js";
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
      if (name.startsWith("command_") || name === "ready") this.soon();
      else if (["attached", "resumed", "lost", "detached"].includes(name)) this.mark(name, /** @type {CustomEvent} */ (e).detail.facts);
      else if (name === "usage") this.sample();
    }, { signal });
    live.addEventListener("state", () => { if (live.state === "live") this.soon(); }, { signal });
    signal.addEventListener("abort", () => { clearTimeout(this.timer); this.session?.leave(); });
    this.timer = 0;
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
  get began() { return this.sandbox?.ready ?? this.sandbox?.created ?? this.commands[0]?.began ?? Date.now() / 1000; }
  get until() { return this.sandbox?.ended ?? Date.now() / 1000; }
  get length() { return Math.max(this.until - this.began, ...this.commands.map((c) => c.at + (c.dur ?? 0)), 1); }

  /** Reads the history soon, once for many events. */
  soon() { if (!this.timer) this.timer = window.setTimeout(() => { this.timer = 0; this.read(); }, AGAIN_MS); }

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
      if (this.state === "loading") this.state = "failed";
      if (error.retryable && this.sandbox && this.sandbox.status !== "ended") setTimeout(() => { if (!this.signal.aborted) this.read(); }, 2000);
    } finally { this.reading = false; }
    if (this.again) { this.again = false; this.soon(); }
    this.dispatchEvent(new Event("change"));
  }

  /** @param {any[]} rows */
  take(rows) {
    const known = new Map(this.commands.map((c) => [c.id, c])), began = this.began;
    this.commands = rows.map((row, i) => {
      const old = known.get(row.command_id), at = Math.max((row.started_at ?? began) - began, 0);
      /** @type {Command} */
      const next = { n: i + 1, id: row.command_id, where: row.kind === "run" ? `shell ${row.shell}` : row.kind === "terminal" ? "terminal" : "exec", text: row.line, began: row.started_at ?? began, at, dur: row.running ? null : row.duration_s ?? 0, exit: row.exit_code, running: row.running, signal: row.signal ?? "", reason: row.reason ?? "", cpu: row.cpu_s, outBytes: row.stdout_bytes, errBytes: row.stderr_bytes, heldBytes: row.held_bytes, output: old?.output ?? null };
      return next;
    }).sort((a, b) => a.at - b.at).map((c, i) => ({ ...c, n: i + 1 }));
    const shells = [...new Set(this.commands.filter((c) => c.where.startsWith("shell ")).map((c) => c.where))];
    for (const c of this.commands) {
      if (c.output) c.output.of = c;
      if (c.where.startsWith("shell ")) { c.shell = c.where.slice(6); c.where = `shell ${shells.indexOf(c.where) + 1}`; }
    }
  }

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
