// The modules of others that the build copied beside this page (../vendor). A build without npm has none, and says so where one is needed.

/** @returns {Promise<{name: string, version: string, license: string}[]>} */
export async function vendored() {
  try {
    const answer = await fetch("/ui/vendor/modules.json");
    return answer.ok ? await answer.json() : [];
  } catch { return []; }
}

/** @param {string} name @returns {Promise<any>} */
const load = (name) => import(`../vendor/${name}.mjs`);

/** xterm.js and its addons; null if this build has none. */
export async function xterm() {
  try {
    const [core, fit] = await Promise.all([load("xterm"), load("addon-fit")]);
    return { Terminal: core.Terminal, FitAddon: fit.FitAddon };
  } catch { return null; }
}
