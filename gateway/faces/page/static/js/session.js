// One session with the agent of a sandbox, over a WebSocket through any gateway (PROTOCOL §3 to §6). Owns what is not acknowledged, how far each
// channel was received, and the connections: when one is lost, the next continues at the byte. Used by the terminal and by what reads output.
import { decode, encode } from "./msgpack.js";

const WINDOW = 1024 * 1024;
const SLACK = 4096;
const PIECE = 64 * 1024;
const ACK_MS = 200;
const ACK_BYTES = 64 * 1024;
const PING_MS = 5000;
const LOST_MS = 20000;
const PAUSES_MS = [100, 300, 700, 1500, 3000, 5000];
const GONE = new Set(["sandbox_gone", "sandbox_not_found", "sandbox_failed", "session_lost", "session_fenced", "session_forbidden", "session_limit", "key_invalid", "scope_missing", "version_unsupported", "origin_refused"]);
const ENDING = new Set(["evicted", "preempted", "deleted", "node-lost"]);
const OPEN = 1, WRITE = 3, RESIZE = 4, SIGNAL = 5, CLOSE = 6;
const OPENED = 16, STARTED = 17, OUTPUT = 18, GAP = 19, EXITED = 20, CLOSED = 21, FAILED = 22;
const HELLO = 32, WELCOME = 33, ACK = 34, CREDIT = 35, PING = 36, PONG = 37, GOAWAY = 38;

/** @typedef {"connecting"|"connected"|"reconnecting"|"ended"} State */
/** @typedef {{offset: number, end: number, frame: Uint8Array}} Item */
/**
 * @typedef {Object} Handlers
 * @property {(info: Map<string, any>) => void} [started]
 * @property {(data: Uint8Array, stream: number, used: () => void) => void} [output] `used` says that the bytes were consumed
 * @property {(dropped: number, stream: number) => void} [gap]
 * @property {(result: Map<string, any>) => void} [ended]
 * @property {(error: {code: string, message: string}) => void} [failed]
 */

/** @param {number} bytes */
const random = (bytes) => crypto.getRandomValues(new Uint8Array(bytes));
/** @param {Uint8Array} data */
const hex = (data) => [...data].map((b) => b.toString(16).padStart(2, "0")).join("");

export class Channel {
  /** @param {Session} session @param {number} number @param {Handlers} handlers */
  constructor(session, number, handlers) {
    this.session = session;
    this.number = number;
    this.handlers = handlers;
    /** @type {Item[]} */
    this.stored = [];
    this.unsent = 0;
    this.next = 0;
    this.limit = WINDOW;
    this.received = 0;
    this.consumed = 0;
    this.granted = WINDOW;
    this.owed = 0;
    this.over = false;
  }

  /** @param {number} kind @param {any[]} fields @param {number} [size] bytes in it */
  push(kind, fields, size = 0) {
    if (this.over) return;
    const offset = this.next;
    this.next += size || 1;
    this.stored.push({ offset, end: this.next, frame: encode([kind, this.number, offset, ...fields]) });
    this.session.flush();
  }

  /** @param {Uint8Array} data @param {boolean} [eof] */
  write(data, eof = false) {
    for (let at = 0; at < data.length; at += PIECE) {
      const piece = data.subarray(at, at + PIECE);
      this.push(WRITE, [piece, eof && at + PIECE >= data.length], piece.length);
    }
    if (eof && !data.length) this.push(WRITE, [data, true]);
  }

  /** Bytes that were written and that the agent has not received. */
  get waiting() { return this.next - (this.stored[0]?.offset ?? this.next); }

  /** @param {number} rows @param {number} columns */
  resize(rows, columns) { this.push(RESIZE, [rows, columns]); }

  /** @param {string} name such as INT */
  signal(name) { this.push(SIGNAL, [name]); }

  /** Ends what the channel is for, or leaves it running. @param {boolean} [detach] */
  close(detach = false) { this.push(CLOSE, [detach]); }

  /** @param {number} size */
  use(size) {
    this.consumed += size;
    if (this.granted - this.consumed > WINDOW / 2 || this.over) return;
    this.granted = this.consumed + WINDOW;
    this.session.send([CREDIT, this.number, this.granted]);
  }

  /** @param {number} received by the other end */
  ack(received) {
    const kept = this.stored.findIndex((item) => item.end > received), freed = kept < 0 ? this.stored.length : kept;
    this.stored.splice(0, freed);
    this.unsent = Math.max(this.unsent - freed, 0);
  }
}

export class Session {
  /** @param {string} url @param {(state: State, why: string) => void} onstate @param {() => Promise<string>} whyRefused why a connection could not be made; "" to try again */
  constructor(url, onstate, whyRefused) {
    this.url = url;
    this.onstate = onstate;
    this.whyRefused = whyRefused;
    this.id = hex(random(16));
    this.secret = random(16);
    this.epoch = "";
    this.generation = 0;
    this.attempt = 0;
    this.nextChannel = 1;
    /** @type {Map<number, Channel>} */
    this.channels = new Map();
    /** @type {WebSocket|null} */
    this.socket = null;
    this.attached = false;
    this.state = /** @type {State} */ ("connecting");
    this.failures = 0;
    this.heard = 0;
    this.pings = 0;
    this.timer = setInterval(() => this.tick(), 1000);
    /** @type {number|undefined} */
    this.ackTimer = undefined;
    this.ending = false;
    this.connect();
  }

  /** @param {string} kind @param {any} params @param {Handlers} handlers */
  open(kind, params, handlers) {
    const channel = new Channel(this, this.nextChannel, handlers);
    this.nextChannel += 1;
    this.channels.set(channel.number, channel);
    channel.push(OPEN, [kind, params]);
    return channel;
  }

  /** @param {State} state @param {string} [why] */
  become(state, why = "") {
    if (this.state === "ended") return;
    this.state = state;
    this.onstate(state, why);
  }

  connect() {
    if (this.state === "ended") return;
    const socket = new WebSocket(this.url);
    this.socket = socket;
    this.attached = false;
    this.heard = performance.now();
    socket.binaryType = "arraybuffer";
    socket.onopen = () => {
      this.attempt += 1;
      const received = new Map([...this.channels].map(([number, channel]) => [number, channel.received]));
      socket.send(encode([HELLO, 1, this.id, this.secret, this.epoch, this.generation, this.attempt, received, this.nextChannel, false, 0]));
    };
    socket.onmessage = (event) => {
      if (socket !== this.socket) return;
      this.heard = performance.now();
      try { this.receive(decode(new Uint8Array(event.data))); } catch (error) { socket.close(4400, "protocol_error"); this.broken(`the agent sent what cannot be read: ${error}`); }
    };
    socket.onclose = (event) => { if (socket === this.socket) this.broken(event.reason, event.code); };
  }

  /** @param {string} [why] @param {number} [code] */
  async broken(why = "", code = 1006) {
    const socket = this.socket;
    this.socket = null;
    const had = this.attached;
    this.attached = false;
    if (socket && socket.readyState < 2) socket.close();
    if (this.state === "ended") return;
    const refused = code >= 4000 ? why.split(":")[0] : "";
    if (GONE.has(refused) && refused !== "sandbox_gone") { this.end(refused); return; }
    if (had) this.failures = 0;
    this.become("reconnecting");
    if (!had || refused) {
      const gone = await this.whyRefused();
      if (gone) { this.end(gone); return; }
    }
    const pause = PAUSES_MS[Math.min(this.failures, PAUSES_MS.length - 1)];
    this.failures += 1;
    setTimeout(() => this.connect(), pause * (0.75 + Math.random() / 2));
  }

  /** Ends the session here; what runs in the sandbox continues. @param {string} [why] */
  end(why = "") {
    if (this.state === "ended") return;
    clearInterval(this.timer);
    clearTimeout(this.ackTimer);
    this.become("ended", why);
    const socket = this.socket;
    this.socket = null;
    socket?.close(1000);
    for (const channel of this.channels.values()) { channel.over = true; channel.handlers.failed?.({ code: why || "closed", message: why }); }
    this.channels.clear();
  }

  /** Detaches every channel, then closes: programs continue. */
  leave() {
    for (const channel of [...this.channels.values()]) channel.close(true);
    this.channels.forEach((channel) => { channel.handlers = {}; });
    setTimeout(() => this.end("closed"), 300);
  }

  tick() {
    const silent = performance.now() - this.heard;
    if (!this.socket) return;
    if (silent > LOST_MS) this.broken("no answer for 20 s");
    else if (silent > PING_MS && this.attached) { this.pings += 1; this.send([PING, this.pings]); }
  }

  /** @param {any} frame */
  send(frame) { if (this.attached && this.socket) this.socket.send(encode(frame)); }

  flush() {
    if (!this.attached || !this.socket) return;
    for (const channel of this.channels.values()) {
      while (channel.unsent < channel.stored.length) {
        const item = channel.stored[channel.unsent];
        if (item.end > channel.limit + (item.end - item.offset > 1 ? 0 : SLACK)) break;
        this.socket.send(/** @type {any} */ (item.frame));
        channel.unsent += 1;
      }
    }
  }

  /** @param {any} frame */
  receive(frame) {
    if (!Array.isArray(frame)) throw new RangeError("no frame");
    const [kind, number, third] = frame;
    if (kind === WELCOME) { this.welcome(frame); return; }
    if (!this.attached) throw new RangeError("a frame before Welcome");
    const channel = this.channels.get(number);
    if (kind === ACK) { channel?.ack(third); } else if (kind === CREDIT) {
      if (channel && third > channel.limit) { channel.limit = third; this.flush(); }
    } else if (kind === PING) this.send([PONG, number]);
    else if (kind === GOAWAY) this.goAway(frame);
    else if (kind >= OPENED && kind <= FAILED) this.item(channel, frame);
  }

  /** @param {any[]} frame */
  welcome([, , epoch, generation, resumed, received]) {
    if (this.epoch && (epoch !== this.epoch || !resumed)) { this.end("session_lost"); return; }
    this.epoch = epoch;
    this.generation = generation;
    this.attached = true;
    this.failures = 0;
    for (const [number, channel] of this.channels) {
      channel.ack(received.get(number) ?? 0);
      channel.unsent = 0;
      channel.owed = 0;
      if (channel.granted !== WINDOW) this.send([CREDIT, number, channel.granted]);
    }
    this.become("connected");
    this.flush();
  }

  /** @param {any[]} frame */
  goAway([, , jitter, reason]) {
    if (ENDING.has(reason)) { this.ending = true; return; }
    const socket = this.socket;
    setTimeout(() => { if (socket && socket === this.socket) this.broken("draining"); }, Math.random() * Math.min(Number(jitter) || 0, 5) * 1000);
  }

  /** @param {Channel|undefined} channel @param {any[]} frame */
  item(channel, frame) {
    const [kind, number, offset, first, second] = frame;
    const size = kind === OUTPUT ? second.length : 0, end = offset + (size || 1);
    if (!channel) { this.send([ACK, number, end]); return; }
    if (end > channel.received) {
      if (offset !== channel.received) throw new RangeError(`channel ${number} jumps from ${channel.received} to ${offset}`);
      if (size && end > channel.granted + SLACK) throw new RangeError(`channel ${number} overran its credit`);
      channel.received = end;
      if (!size) channel.consumed += 1;
      this.deliver(channel, kind, first, second, size);
    }
    channel.owed += size;
    if (channel.over || channel.owed >= ACK_BYTES) { channel.owed = 0; this.send([ACK, number, channel.received]); } else if (this.ackTimer === undefined) this.ackTimer = window.setTimeout(() => this.acknowledge(), ACK_MS);
  }

  acknowledge() {
    this.ackTimer = undefined;
    for (const [number, channel] of this.channels) { channel.owed = 0; this.send([ACK, number, channel.received]); }
  }

  /** @param {Channel} channel @param {number} kind @param {any} first @param {any} second @param {number} size */
  deliver(channel, kind, first, second, size) {
    const { handlers } = channel;
    if (kind === OUTPUT) {
      const used = () => channel.use(size);
      if (size === 0) return;
      if (handlers.output) handlers.output(second, first, used); else used();
    } else if (kind === GAP) handlers.gap?.(second, first);
    else if (kind === OPENED) handlers.started?.(first);
    else if (kind === STARTED) handlers.started?.(second);
    else {
      channel.over = true;
      this.channels.delete(channel.number);
      if (kind === EXITED) handlers.ended?.(second);
      else if (kind === CLOSED) handlers.ended?.(first);
      else if (kind === FAILED) handlers.failed?.({ code: String(first.get("code") ?? "internal"), message: String(first.get("message") ?? "") });
    }
  }
}
