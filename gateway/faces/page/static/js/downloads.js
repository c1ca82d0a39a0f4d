// Gives the person a file to keep. Owns its type, which is always one that a browser saves and never opens.
import { h } from "./dom.js";

/** A file of the service, which the browser writes as it comes. The service answers with Content-Disposition: attachment. @param {string} address @param {string} name */
export const fetchFile = (address, name) => h("a", { href: address, download: name }).click();

/** @param {Uint8Array|string} data @param {string} name */
export function save(data, name) {
  const address = URL.createObjectURL(new Blob([/** @type {any} */ (data)], { type: "application/octet-stream" }));
  h("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}
