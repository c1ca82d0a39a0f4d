// Pulls and imports of images that are under way: those that this page began, and those of the owner's other clients, which the service tells as
// events. They continue when another view is open. Owns their progress and pace; views/images.js shows them.
import { Problem, call, path, upload } from "./api.js";
import { live } from "./live.js";

const PACE_S = 5;
const MOST = 50;
const FAILURES = { image_not_found: ["caller", "The registry has no image of this name."], image_pull_failed: ["infrastructure", "The registry did not give the image."], no_space: ["infrastructure", "There is no space for it."] };
const STATES = { waiting: "waits for its turn", fetching: "fetching", importing: "unpacking" };

/**
 * @typedef {Object} Running
 * @property {string} name
 * @property {boolean} own it was begun here
 * @property {number} size in bytes; 0 if it is not known
 * @property {number} done bytes
 * @property {string} text what it does now
 * @property {[number, number][]} samples times and bytes of the last seconds
 * @property {{fault: string, message: string, code: string, retryable: boolean}|null} error
 * @property {(() => void)|null} again
 * @property {(() => void)|null} cancel
 */

/** The name as a registry's client completes it: events name an image in full, people type the short form. @param {string} name */
export function complete(name) {
  const short = name.replace(/^(docker\.io|index\.docker\.io)\//, "").replace(/^library\//, "");
  return /[:@][^/]*$/.test(short) ? short : `${short}:latest`;
}

class Pulls extends EventTarget {
  /** @type {Running[]} */
  running = [];

  changed() { this.dispatchEvent(new Event("change")); }

  /** @param {string} name */
  pull(name) { this.begin(name, 0, () => call("POST", "/images/pull", { name })); }

  /** @param {string} name @param {File} archive */
  load(name, archive) {
    this.begin(name, archive.size, (one) => {
      const gone = new AbortController();
      one.cancel = () => { gone.abort(); this.drop(one); };
      return upload("POST", path(["images"], { name }), archive, (done) => { this.progress(one, done, done < archive.size ? "uploading" : "unpacking"); this.changed(); }, gone.signal);
    });
  }

  /** @param {string} name @param {number} size @param {(one: Running) => Promise<any>} act */
  begin(name, size, act) {
    const known = this.running.findIndex((one) => complete(one.name) === complete(name) && one.error);
    if (known >= 0) this.running.splice(known, 1);
    /** @type {Running} */
    const one = { name, own: true, size, done: 0, text: "", samples: [], error: null, again: () => this.begin(name, size, act), cancel: null };
    this.running.push(one);
    this.changed();
    act(one).then(() => { this.drop(one); this.dispatchEvent(new CustomEvent("done", { detail: name })); }, (error) => {
      if (!(error instanceof Problem)) return; // it was cancelled
      one.error = { fault: error.fault, message: error.message, code: error.reason || error.code, retryable: error.retryable };
      one.cancel = null;
      this.changed();
    });
  }

  /** @param {Running} one */
  drop(one) {
    const at = this.running.indexOf(one);
    if (at >= 0) this.running.splice(at, 1);
    this.changed();
  }

  /** @param {Running} one @param {number} done @param {string} text */
  progress(one, done, text) {
    const now = performance.now() / 1000;
    one.done = done;
    one.text = text;
    one.samples = [...one.samples.filter(([at]) => at > now - PACE_S), [now, done]];
  }

  /** Bytes a second over the last seconds; 0 if that is not known. @param {Running} one */
  pace(one) {
    const [first, last] = [one.samples[0], one.samples.at(-1)];
    return first && last && last[0] - first[0] > 0.5 ? Math.max((last[1] - first[1]) / (last[0] - first[0]), 0) : 0;
  }

  /** What the service tells of a pull, whoever began it. @param {any} facts */
  told(facts) {
    const name = String(facts.name ?? ""), state = String(facts.state ?? "");
    let one = this.running.find((x) => complete(x.name) === complete(name) && !x.error);
    if (one?.own) { // its own request tells how it ends
      if (STATES[state]) { this.progress(one, Number(facts.received_bytes) || 0, STATES[state]); this.changed(); }
      return;
    }
    if (state === "done") { if (one) this.drop(one); this.dispatchEvent(new CustomEvent("done", { detail: "" })); return; }
    if (!one) {
      if (this.running.length >= MOST || (state === "failed" && this.running.some((x) => complete(x.name) === complete(name)))) return;
      one = { name, own: false, size: 0, done: 0, text: "", samples: [], error: null, again: null, cancel: null };
      this.running.push(one);
    }
    this.progress(one, Number(facts.received_bytes) || 0, STATES[state] ?? "");
    if (state === "failed") {
      const [fault, message] = FAILURES[facts.error] ?? ["infrastructure", "The pull failed."];
      one.error = { fault, message, code: String(facts.error ?? ""), retryable: fault === "infrastructure" };
      one.again = () => this.pull(name);
    }
    this.changed();
  }
}
export const pulls = new Pulls();
live.addEventListener("event", (e) => { const { name, facts } = /** @type {CustomEvent} */ (e).detail; if (name === "pull") pulls.told(facts); });
