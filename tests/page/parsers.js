async ({ seed, rounds }) => {
  // Evaluated by test_parsers.py in the page: examples from a seed, and what must hold for each.
  const [ansi, { Recording }, msgpack] = await Promise.all([import("/ui/js/ansi.js"), import("/ui/js/recording.js"), import("/ui/js/msgpack.js")]);
  let state = seed;
  const random = (n) => { state = (Math.imul(state, 1664525) + 1013904223) >>> 0; return Math.floor(state / 2 ** 32 * n); };
  const pick = (list) => list[random(list.length)];
  const check = (is, what, example) => { if (!is) throw new Error(`${what}: ${JSON.stringify(example)}`); };

  const pieces = ["\u001b[", "\u001b]", "\u001bP", "\u001b\\", "\u0007", "31m", "38;5;1m", "48;2;1;2", ";;;m", "\r", "\n", "\t", "\u0000", "\u202e", "\u009b", "<script>", "text", "ä", "😀", "\ud800", "9".repeat(40), "x".repeat(3000), "[0;", "?25l", "H"];
  for (let i = 0; i < rounds; i += 1) {
    const text = Array.from({ length: random(12) }, () => pick(pieces)).join("");
    const found = ansi.lines(text);
    check(found.length === text.replace(/\n$/, "").split("\n").length, "one line for each line", text);
    for (const line of found) {
      check([line, ...line.querySelectorAll("*")].every((node) => node.tagName === "SPAN"), "only spans", text);
      check(!/[\u0000-\u0008\u000b-\u001f\u202a-\u202e]/.test(line.textContent), "no hidden character", text);
    }
  }

  const values = [null, 0, -1, 1e300, "x", "", true, [], {}, "c1", "c2", 24, 80, "AA==", "%%%", "__proto__", [1], 1.5];
  const types = ["recording_started", "command_started", "command_ended", "output", "input", "resized", "files_written", "attached", "lost", "resumed", "gap", "branched", "sandbox_ended", "constructor", "else"];
  const names = ["id", "kind", "shell", "line", "command", "command_b64", "data", "data_b64", "stream", "rows", "cols", "exit_code", "duration_s", "signal", "reason", "message", "n", "epoch", "__proto__"];
  for (let i = 0; i < rounds; i += 1) {
    const rows = Array.from({ length: random(12) }, () => {
      const line = { type: pick(types), time: pick([1, 2, 3, 1e12, -5, null, "x"]) };
      for (let k = random(8); k > 0; k -= 1) line[pick(names)] = pick(values);
      if (random(2)) line.id = pick(["c1", "c2"]);
      return random(10) ? JSON.stringify(line) : pick(["", "{", "[]", "null", "7", "\u0000", "{\"type\":"]);
    });
    const data = new TextEncoder().encode(rows.join("\n") + (random(2) ? "\n" : ""));
    const whole = new Recording(true), parts = new Recording(true);
    whole.take(data);
    for (let at = 0; at < data.length;) { const size = 1 + random(40); parts.take(data.subarray(at, at + size)); at += size; }
    check(JSON.stringify([whole.commands, whole.frames, whole.marks, whole.end]) === JSON.stringify([parts.commands, parts.frames, parts.marks, parts.end]), "in pieces as in one", rows);
    check(whole.frames.every((one, k) => Number.isFinite(one.t) && one.t >= (whole.frames[k - 1]?.t ?? 0)), "time does not go back", rows);
    check(Number.isFinite(whole.length) && whole.commands.every((one) => one.at >= 0 && (one.dur === null || one.dur >= 0)), "times are numbers", rows);
  }

  for (let i = 0; i < rounds; i += 1) {
    const data = Uint8Array.from({ length: random(60) }, () => pick([0xdf, 0x9f, 0xc4, 0xdc, 0x81, 0xcf, 0xd9, random(256)]));
    try { msgpack.decode(data); } catch (error) { check(error instanceof RangeError, `a RangeError, not ${error}`, [...data]); }
  }
  return rounds;
}
