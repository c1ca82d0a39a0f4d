// The first visit: three commands, and a line that says what the page waits for.
import { add, h } from "../dom.js";
import { live } from "../live.js";
import { command, glyph, link } from "../parts.js";

const STEPS = [["Run one command", "Creates a sandbox, runs the command, deletes the sandbox.", "holdfast run --rm host python3 -c 'print(6 * 7)'"], ["Keep a sandbox", "It runs in the background and appears on this page.", "holdfast run -d --name web host python3 -m http.server"], ["Open its shell", "The shell keeps its directory, variables and jobs. Every command appears in the timeline.", "holdfast exec -it web bash"]];
export const welcome = {
  title: "Start",
  /** @param {HTMLElement} root @param {import("../main.js").Context} context */
  mount(root, { signal, go }) {
    live.addEventListener("change", () => { if (live.all.size) go("overview"); }, { signal });
    add(root, h("section.welcome", h("h1", "No sandbox has run here yet"), h("p.lead", "Holdfast runs on this machine and is ready. Run these three commands in a terminal, in the folder where you started it."),
      h("ol.steps", STEPS.map(([title, text, cmd]) => h("li", h("h2", title), h("p", text), command(cmd)))),
      h("p.waiting", glyph("pending"), "Waiting for the first sandbox. This page changes by itself when it appears."),
      h("p.note", "From Python: ", h("code", "from holdfast import SandboxClient"), ". Something does not work? ", link("Doctor", "#/doctor"), " names the cause and the remedy.")));
  },
};
