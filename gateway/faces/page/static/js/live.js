// What the page knows of the owner's sandboxes: one list, then every change as an event. Owns the order of both, what is kept of sandboxes that
// have ended, and the state of the connection. Views read `live` and listen for its "change"; they never fetch the list themselves.
import { Problem, follow, get, path } from "./api.js";

const KEPT_S = 3600;
const PAGE = 1000;
const DRAW_MS = 120;
const LIST_AGAIN_MS = 1500;
const USAGE_S = 5;
const SAMPLES = 24;
const MOST_COMMANDS = 20000;
const LIFE = new Set(["created", "ready", "leaving", "paused", "failed", "deleted"]);

/**
 * @typedef {Object} Sandbox
 * @property {string} id
 * @property {"ready"|"pending"|"leaving"|"paused"|"failed"|"ended"} status
 * @property {string} owner
 * @property {string} image
 * @property {any[]|null} ports on which its programs listen, as it reports them; null if it did not yet
 * @property {string} group
 * @property {Record<string, string>} labels
 * @property {number|null} created
 * @property {number|null} ready
 * @property {number|null} ended
 * @property {number|null} expires
 * @property {string} cpu
 * @property {string} memory
 * @property {string} reason
 * @property {string} fault
 * @property {string} message
 * @property {any} record the answer of the service; null if only events are known
 * @property {Command|null} command the last one
 * @property {number[]|null} cpuUse in cores
 * @property {number[]|null} memoryUse in bytes
 * @property {{at: number, cpu: number}|null} sample the last one
 */
/** @typedef {{id: string, line: string, running: boolean, exit: number|null}} Command */

/** Whose sandboxes these are. */
let owner = "";
/** @param {string} id @returns {Sandbox} */
const blank = (id) => ({ id, owner, ports: null, status: "pending", image: "", group: "", labels: {}, created: null, ready: null, ended: null, expires: null, cpu: "", memory: "", reason: "", fault: "", message: "", record: null, command: null, cpuUse: null, memoryUse: null, sample: null });

class Live extends EventTarget {
  constructor() {
    super();
    /** @type {Map<string, Sandbox>} */
    this.all = new Map();
    /** Sandboxes that the last list had no more, until their end arrives as an event: it tells the cause, but neither labels nor group. @type {Map<string, Sandbox>} */
    this.missing = new Map();
    /** @type {"loading"|"live"|"stale"|"offline"} */
    this.state = "loading";
    /** When the state began, in seconds since the epoch; for "live" when it was last not. */
    this.since = Date.now() / 1000;
    /** @type {Problem|null} the last refusal of the list */
    this.problem = null;
    /** How long the last loss of the connection took, in seconds, and whether events were lost; null if there was none, or it was dismissed. `of`: what was lost. @type {{took: number, gap: string, of: "offline"|"stale"}|null} */
    this.reconnected = null;
    this.loaded = false;
    /** When this page began to follow events, in seconds since the epoch. */
    this.opened = Date.now() / 1000;
    /** Times of creates, in seconds since the epoch, and what the last hour knows of commands. @type {{at: number, count: number}[]} */
    this.commands = [];
    /** @type {{name: string, facts: any}[]|null} */
    this.held = [];
    this.drawing = 0;
    this.listing = 0;
    /** @type {{again: () => void}|null} */
    this.stream = null;
  }

  /** @param {string[]} scopes of the session: what happens in sandboxes needs `exec` @param {string} whose */
  start(scopes, whose) {
    owner = whose;
    if (this.stream) return;
    const activity = scopes.includes("exec") ? { activity: "true", usage_s: USAGE_S } : {};
    this.stream = follow({ since: KEPT_S, pulls: "true", ...activity }, (name, facts) => this.event(name, facts), (state, problem) => this.connection(state, problem));
  }

  tryNow() { this.stream?.again(); if (this.problem) this.list(); }

  /** @param {"open"|"lost"|"stale"|"back"} state @param {Problem} [problem] */
  connection(state, problem) {
    if (state === "stale") this.become("stale");
    else if (state === "back") this.back();
    else if (state === "open") {
      const took = Date.now() / 1000 - this.since;
      if (this.state === "offline" || this.state === "stale") { this.reconnected = { took, gap: "", of: this.state }; setTimeout(() => { this.reconnected = null; this.changed("state"); }, 10000); }
      if (!this.loaded) this.list();
      this.become("live");
    } else this.become(problem?.code === "placement_unavailable" ? "stale" : "offline");
  }

  /** @param {"loading"|"live"|"stale"|"offline"} state */
  become(state) {
    if (this.state !== state) { this.state = state; this.since = Date.now() / 1000; }
    this.changed("state");
  }

  /** The service refused something because its store does not answer, or it answers again. @param {Problem} problem */
  refused(problem) { if (problem.code === "placement_unavailable" && this.state === "live") { this.become("stale"); this.recover(); } }

  /** The store answers again: what the page knows is compared with it. */
  back() {
    if (this.state !== "stale") return;
    this.connection("open");
    this.list();
  }

  /** The stream tells when the store is back; after a refusal the list shows it, too. */
  recover() {
    setTimeout(async () => {
      if (this.state !== "stale") return;
      try { await get(path(["sandboxes"], { limit: 1 })); } catch { this.recover(); return; }
      this.back();
    }, 2000);
  }

  async list() {
    const listing = this.listing += 1;
    this.held ??= [];
    try {
      /** @type {any[]} */
      const found = [];
      for (let cursor; ;) {
        const page = await get(path(["sandboxes"], { limit: PAGE, cursor }));
        found.push(...page.sandboxes);
        cursor = page.cursor;
        if (!cursor) break;
      }
      if (listing !== this.listing) return;
      const names = new Set(found.map((one) => one.sandbox_id));
      for (const [id, one] of this.all) if (!names.has(id) && one.status !== "ended") { this.all.delete(id); this.missing.set(id, { ...one, ended: Date.now() / 1000 }); }
      for (const record of found) this.record(record);
      this.problem = null;
      this.loaded = true;
    } catch (error) {
      if (listing !== this.listing || !(error instanceof Problem)) return;
      this.problem = error;
      if (error.retryable) setTimeout(() => { if (listing === this.listing) this.list(); }, 3000);
    }
    const held = this.held ?? [];
    if (this.loaded) this.held = null;
    if (this.loaded) for (const { name, facts } of held) this.event(name, facts);
    this.changed("list");
  }

  /** A sandbox as REST shows it. @param {any} record */
  record(record) {
    const one = this.all.get(record.sandbox_id) ?? blank(record.sandbox_id), leaving = record.leaving;
    Object.assign(one, { record, image: record.image, group: record.group ?? "", labels: record.labels ?? {}, created: record.created_at, ready: record.ready_at, ended: null, expires: leaving?.deadline ?? record.expires_at, cpu: record.cpu, memory: record.memory,
      reason: leaving?.reason ?? record.reason ?? "", fault: leaving?.fault ?? record.fault ?? "", message: leaving?.message ?? (record.reason ? record.status_message : ""), status: record.status === "ready" ? (leaving ? "leaving" : record.paused ? "paused" : "ready") : record.status });
    this.all.set(one.id, one);
    return one;
  }

  /** @param {string} name @param {any} facts */
  event(name, facts) {
    if (name === "position") return;
    if (name === "gap" && facts.sandbox_id) return; // of one agent's reports: the history has them
    if (name === "gap") {
      if (this.reconnected) this.reconnected.gap = String(facts.message ?? "");
      if (this.loaded) { this.loaded = false; this.list(); }
      return;
    }
    if (this.held) { this.held.push({ name, facts }); return; }
    const id = String(facts.sandbox_id ?? "");
    if (LIFE.has(name)) this.life(name, id, facts);
    else if (this.isRepeated(name, id, facts)) return;
    else this.activity(name, this.all.get(id), facts);
    this.dispatchEvent(new CustomEvent("event", { detail: { name, id, facts } }));
    this.changed("list");
  }

  /** What an agent reports may come twice. The facts of one entry, such as the start and the end of a command, have one position. @param {string} name @param {string} id @param {any} facts */
  isRepeated(name, id, facts) {
    if (typeof facts.seq !== "number") return false;
    const key = `${id} ${facts.journal}`, last = this.reported.get(key);
    if (last && (facts.seq < last.seq || (facts.seq === last.seq && last.names.includes(name)))) return true;
    if (last && last.seq === facts.seq) last.names.push(name); else this.reported.set(key, { seq: facts.seq, names: [name] });
    return false;
  }
  /** @type {Map<string, {seq: number, names: string[]}>} */
  reported = new Map();

  /** What happens in a sandbox, as it reports it. @param {string} name @param {Sandbox|undefined} one @param {any} facts */
  activity(name, one, facts) {
    if (!one) return;
    if (name === "command_started") {
      one.command = { id: String(facts.command_id), line: String(facts.line ?? ""), running: true, exit: null };
      if (!facts.late) this.commands.push({ at: facts.time, count: 1 });
      if (this.commands.length > MOST_COMMANDS) this.commands.splice(0, MOST_COMMANDS / 2);
    } else if (name === "command_ended") {
      if (one.command && one.command.id === facts.command_id) Object.assign(one.command, { running: false, exit: facts.exit_code ?? null });
    } else if (name === "ports") one.ports = Array.isArray(facts.ports) ? facts.ports : null;
    else if (name === "usage") {
      const { sample } = one, cpu = Number(facts.cpu_s), push = (list, value) => [...(list ?? []), value].slice(-SAMPLES);
      if (Number.isFinite(facts.memory_bytes)) one.memoryUse = push(one.memoryUse, facts.memory_bytes);
      if (sample && facts.time > sample.at && Number.isFinite(cpu)) one.cpuUse = push(one.cpuUse, Math.max((cpu - sample.cpu) / (facts.time - sample.at), 0));
      if (Number.isFinite(cpu)) one.sample = { at: facts.time, cpu };
    }
  }

  /** @param {string} name @param {string} id @param {any} facts */
  life(name, id, facts) {
    const old = this.all.get(id) ?? (name === "deleted" ? this.missing.get(id) : undefined), cause = { reason: facts.reason ?? "", fault: facts.fault ?? "", message: facts.message ?? "" };
    if (name === "deleted") {
      const one = old ?? blank(id);
      if (one.created !== null && one.created > facts.time) return; // of an earlier sandbox with this id
      this.missing.delete(id);
      for (const key of this.reported.keys()) if (key.startsWith(`${id} `)) this.reported.delete(key);
      Object.assign(one, { status: "ended", ended: facts.time, cpuUse: null, memoryUse: null, ...cause });
      this.all.set(id, one);
      return;
    }
    const one = old && old.status !== "ended" ? old : blank(id);
    Object.assign(one, { image: facts.image ?? one.image, labels: facts.labels ?? {}, group: facts.group ?? "", created: facts.created_at, ready: facts.ready_at, ended: null, status: name === "created" ? "pending" : name, ...cause });
    this.all.set(id, one);
    if (!one.record || one.record.status !== (name === "created" ? "pending" : name === "failed" ? "failed" : "ready")) this.complete();
  }

  /** Events have no limits and sizes: read the list again, once for many of them. */
  complete() {
    if (this.completing) return;
    this.completing = window.setTimeout(() => { this.completing = 0; this.list(); }, LIST_AGAIN_MS);
  }
  completing = 0;

  /** @param {string} what */
  changed(what) {
    if (what === "state") { this.dispatchEvent(new CustomEvent("state")); return; }
    if (this.drawing) return;
    this.drawing = window.setTimeout(() => { this.drawing = 0; this.forget(); this.dispatchEvent(new CustomEvent("change")); }, DRAW_MS);
  }

  forget() {
    const now = Date.now() / 1000;
    for (const known of [this.all, this.missing]) for (const [id, one] of known) if (one.ended !== null && one.ended < now - KEPT_S) known.delete(id);
  }

  list_() { return [...this.all.values()]; }
}
export const live = new Live();

/** Ends that the owner asked for, which carry no fault. @param {Sandbox} one */
export const isOrdinary = (one) => ["deleted", "ttl", "idle", "group-lease", "heartbeat"].includes(one.reason) && one.fault !== "infrastructure" && one.fault !== "workload";
