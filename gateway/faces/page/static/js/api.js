// Requests to the service with the session's cookie. Owns addresses, the problem documents that refusals are, and the stream of events.

export const API = "/ui/api";
const SILENT_MS = 45000;
const PAUSES_MS = [250, 500, 1000, 2000, 4000];

/** A refusal, or no answer (`status` 0). The fields are those of the service's problem documents. */
export class Problem extends Error {
  /** @param {number} status @param {any} body @param {string} [request] */
  constructor(status, body, request = "") {
    super(String(body.detail ?? body.title ?? "The service does not answer."));
    this.status = status;
    this.code = String(body.code ?? (status ? "internal" : "no_answer"));
    this.hint = String(body.hint ?? "");
    this.fault = ["workload", "caller", "infrastructure"].includes(body.fault) ? String(body.fault) : "infrastructure";
    this.reason = String(body.reason ?? "");
    this.retryable = Boolean(body.retryable ?? !status);
    this.request = request;
  }
}

/** @param {string[]} parts of a path, which are encoded @param {Record<string, string|number|string[]|undefined>} [query] */
export function path(parts, query = {}) {
  const pairs = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) for (const one of [value].flat()) if (one !== undefined && one !== "") pairs.append(name, String(one));
  return `/${parts.map(encodeURIComponent).join("/")}${pairs.size ? `?${pairs}` : ""}`;
}

/** @param {Response} answer */
async function refusal(answer) {
  const body = await answer.json().catch(() => ({}));
  return new Problem(answer.status, body, answer.headers.get("x-request-id") ?? "");
}

/** @param {string} address @param {RequestInit} [options] @returns {Promise<Response>} Throws Problem. */
async function send(address, options = {}) {
  let answer;
  try {
    answer = await fetch(address, { credentials: "same-origin", redirect: "error", ...options });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new Problem(0, {});
  }
  if (answer.ok) return answer;
  const problem = await refusal(answer);
  if (["key_missing", "key_invalid"].includes(problem.code)) document.dispatchEvent(new CustomEvent("signed-out"));
  else document.dispatchEvent(new CustomEvent("problem", { detail: problem }));
  throw problem;
}

/** @param {string} method @param {string} address below the API @param {any} [body] JSON @param {AbortSignal} [signal] @returns {Promise<any>} */
export async function call(method, address, body, signal) {
  const answer = await send(API + address, { method, signal, body: body === undefined ? undefined : JSON.stringify(body), headers: body === undefined ? {} : { "Content-Type": "application/json" } });
  return answer.json();
}
/** @param {string} address @param {AbortSignal} [signal] */
export const get = (address, signal) => call("GET", address, undefined, signal);

/** The bytes at an address. @param {string} address @param {AbortSignal} [signal] @param {(piece: Uint8Array) => void} [onpiece] gets them as they come; nothing is kept then @returns {Promise<Uint8Array>} */
export async function bytesOf(address, signal, onpiece) {
  const answer = await send(API + address, { signal });
  if (!onpiece) return new Uint8Array(await answer.arrayBuffer());
  const reader = /** @type {ReadableStream<Uint8Array>} */ (answer.body).getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return new Uint8Array();
      onpiece(value);
    }
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Problem(0, {});
  }
}

/** Uploads bytes with progress, which fetch does not report. @param {string} method @param {string} address @param {Blob} body @param {(sent: number) => void} onprogress @param {AbortSignal} [signal] @returns {Promise<any>} Throws Problem, and an AbortError. */
export function upload(method, address, body, onprogress, signal) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open(method, API + address);
    request.upload.onprogress = (event) => onprogress(event.loaded);
    request.onerror = () => reject(new Problem(0, {}));
    request.onabort = () => reject(new DOMException("The upload was cancelled", "AbortError"));
    request.onload = () => {
      let answer = {};
      try { answer = JSON.parse(request.responseText); } catch { /* not JSON */ }
      if (request.status < 300) resolve(answer);
      else reject(new Problem(request.status, answer, request.getResponseHeader("x-request-id") ?? ""));
    };
    signal?.addEventListener("abort", () => request.abort(), { once: true });
    request.send(body);
  });
}

export const session = {
  /** @returns {Promise<{owner: string, key_id: string, scopes: string[], expires_at: number, preview_domain: string}>} */
  async read() { return (await send("/ui/session")).json(); },
  /** @param {{key?: string, link?: string}} body */
  async begin(body) { return (await send("/ui/session", { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" } })).json(); },
  async end() { await send("/ui/session", { method: "DELETE" }); },
};

/** The address of a WebSocket. @param {string[]} parts */
export const socket = (parts) => `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}${API}${path(parts)}`;

/**
 * The owner's events, without end: it connects again and continues after the last event.
 * @param {Record<string, string|number|undefined>} query of the first connection
 * @param {(name: string, facts: any) => void} onevent
 * @param {(state: "open"|"lost"|"stale"|"back", problem?: Problem) => void} onstate `stale` while the service's store does not answer
 * @returns {{again: () => void}} `again` tries at once
 */
export function follow(query, onevent, onstate) {
  let last = "", failures = 0, wake = () => {};
  const { since: _since, ...wanted } = query; // what is wanted holds for each connection; where it begins, for the first
  const run = async () => {
    for (;;) {
      const gone = new AbortController();
      let heard = performance.now();
      const watch = setInterval(() => { if (performance.now() - heard > SILENT_MS) gone.abort(); }, 5000);
      let problem;
      try {
        const answer = await send(API + path(["events"], last ? wanted : query), { signal: gone.signal, headers: last ? { "Last-Event-ID": last } : {} });
        onstate("open");
        failures = 0;
        for await (const { name, id, data } of read(answer, () => { heard = performance.now(); })) {
          if (id) last = id;
          if (name === "comment") { if (data.startsWith("the placement store ")) onstate(data.endsWith("again") ? "back" : "stale"); continue; }
          if (data) onevent(name, JSON.parse(data));
        }
      } catch (error) { problem = error instanceof Problem ? error : undefined; }
      clearInterval(watch);
      if (problem && ["key_missing", "key_invalid"].includes(problem.code)) return;
      if (problem?.status === 400) last = "";
      onstate("lost", problem);
      const pause = PAUSES_MS[Math.min(failures, PAUSES_MS.length - 1)] * (0.75 + Math.random() / 2);
      failures += 1;
      await new Promise((resolve) => { const timer = setTimeout(resolve, pause); wake = () => { clearTimeout(timer); resolve(undefined); }; });
    }
  };
  run();
  return { again: () => wake() };
}

/** @param {Response} answer @param {() => void} onbytes */
async function* read(answer, onbytes) {
  const reader = /** @type {ReadableStream<Uint8Array>} */ (answer.body).getReader(), decoder = new TextDecoder();
  let rest = "", event = { name: "message", id: "", data: "" };
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    onbytes();
    const lines = (rest + decoder.decode(value, { stream: true })).split("\n");
    rest = lines.pop() ?? "";
    for (const line of lines) {
      const at = line.indexOf(":"), field = line.slice(0, at), text = line.slice(at + 1).replace(/^ /, "");
      if (at === 0) yield { name: "comment", id: "", data: text };
      else if (line === "") {
        yield event;
        event = { name: "message", id: "", data: "" };
      } else if (field === "event") event.name = text;
      else if (field === "data") event.data += (event.data ? "\n" : "") + text;
      else if (field === "id") event.id = text;
    }
  }
}
