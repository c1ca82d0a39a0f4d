"""The recorded agent: what it thinks, does and expects, turn by turn.

Owns the episode's script, in our own words; no line of the library is kept here but the one that is wrong. A turn is
a command for the living shell, or a step through the SDK (`act`). `state` is what a caller without a living shell has
to say again before every later command; `lives` marks turns that talk to what an earlier turn left running, `prepares`
those that bring the material in place, which a model in the policy's stead does not have to do.
"""

from __future__ import annotations

import difflib
import json
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass

from holdfast import Sandbox

from infra.demo.material import BROKEN, PROJECT, Material

WORK = "/tmp/work"
TREE = f"{WORK}/{PROJECT}-{BROKEN}"
MODULE = f"{TREE}/more_itertools/more.py"
TARGET = "tests.test_next.SplitAfterTest"
_PORT = 8017

_SUITE = 'suite () { python -m unittest "$@" > ../suite.log 2>&1; set -- $?; tail -n 5 ../suite.log; return "$1"; }'
_ASK = f"""ask () {{ python -c 'import sys, urllib.parse, urllib.request as r
query = urllib.parse.urlencode({{"text": sys.argv[1], "most": sys.argv[2]}})
print(r.urlopen("http://127.0.0.1:{_PORT}/?" + query).read().decode())' "$@"; }}"""
_SERVER = f"""import http.server, json, urllib.parse
from more_itertools import split_after

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query))
        parts = list(split_after(query["text"], str.isdigit, maxsplit=int(query["most"])))
        body = json.dumps(parts).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

http.server.ThreadingHTTPServer(("127.0.0.1", {_PORT}), Handler).serve_forever()
"""
_REGRESSION = """import unittest
from more_itertools import split_after

class NothingAfterTheLastSplit(unittest.TestCase):
    def test_no_empty_part(self):
        for text in ("1", "a1", "a1b2"):
            with self.subTest(text=text):
                parts = list(split_after(text, str.isdigit, maxsplit=text.count("1") + text.count("2")))
                self.assertTrue(all(parts), parts)
                self.assertEqual("".join(map("".join, parts)), text)
"""
_PROPERTY = """import itertools
from more_itertools import split_after
tried = 0
for size in range(7):
    for items in itertools.product((0, 1), repeat=size):
        for most in range(-1, size + 2):
            parts = list(split_after(items, bool, maxsplit=most))
            assert sum(parts, []) == list(items), (items, most, parts)
            assert all(parts) or not items, (items, most, parts)
            tried += 1
print(tried, 'inputs hold')
"""
_SIBLINGS = """import more_itertools
for name in ('split_at', 'split_before', 'split_after'):
    print(name, list(getattr(more_itertools, name)('ab1', str.isdigit, maxsplit=1)))
"""
_WAIT = "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do ask x -1 2> /dev/null && break; sleep 0.1; done"


@dataclass(frozen=True, slots=True)
class Turn:
    """One step. `expect` must be in the output and `exit_code` must match, or the episode has failed."""

    thought: str
    command: str = ""
    expect: str = ""
    exit_code: int = 0
    act: Callable[[Sandbox], str] | None = None
    state: str = ""
    lives: bool = False
    prepares: bool = False


def recorded(material: Material) -> list[Turn]:
    """The whole episode for this material."""
    return [*_explore(material), *_reproduce(material), *_repair(), *_verify()]


def _explore(material: Material) -> list[Turn]:
    return [
        Turn("Where am I?", "uname -s; id -u; python3 --version", "Python 3"),
        Turn("Make a place to work in.", f"mkdir -p {WORK} && cd {WORK} && pwd", WORK, prepares=True),
        Turn("Bring in the source distribution.", act=lambda sandbox: _upload(sandbox, material), prepares=True),
        Turn(
            "Unpack it and go there.",
            f"cd {WORK} && tar xzf {material.source.name} && cd {TREE} && pwd",
            TREE,
            state=f"cd {TREE}",
            prepares=True,
        ),
        Turn("What is in it?", "ls", "more_itertools"),
        Turn("How large is it?", "wc -l more_itertools/*.py tests/*.py", "more_itertools/more.py"),
        Turn(
            "A virtual environment of its own, entered.",
            "python3 -m venv --without-pip ../venv && . ../venv/bin/activate && python -c 'import sys; print(sys.prefix)'",
            f"{WORK}/venv",
            state=". ../venv/bin/activate",
            prepares=True,
        ),
        Turn(
            "There is no pip and no network: a path file installs the tree.",
            'echo "$PWD" > "$(python -c \'import sysconfig; print(sysconfig.get_path("purelib"))\')/project.pth"',
            prepares=True,
        ),
        Turn(
            "Is it found from elsewhere?",
            "cd / && python -c 'import more_itertools as m; print(m.__version__, m.__file__)' && cd - > /dev/null",
            f"{BROKEN} {TREE}",
        ),
        Turn(
            "Remember a few things.",
            "export PYTHONWARNINGS=ignore SUITE=tests.test_more; project=$PWD; echo $SUITE in $project",
            f"tests.test_more in {TREE}",
            state="export PYTHONWARNINGS=ignore SUITE=tests.test_more; project=$PWD",
            prepares=True,
        ),
        Turn("A function to run tests with.", _SUITE, state=_SUITE, prepares=True),
        Turn("Does the library pass its own tests?", 'suite "$SUITE" tests.test_recipes', "OK"),
    ]


def _reproduce(material: Material) -> list[Turn]:
    return [
        Turn("Bring in the tests of the next release.", act=lambda sandbox: _write_tests(sandbox, material), prepares=True),
        Turn("Do they pass here?", "suite tests.test_next", "FAILED", exit_code=1),
        Turn("Which do not?", "suite tests.test_next; grep -E '^(FAIL|ERROR):' ../suite.log", "SplitAfterTest"),
        Turn(
            "gray_product is a later feature, but split_after is here already: that one is a bug.",
            "grep -c gray_product more_itertools/more.py; grep -n 'def split_' more_itertools/more.py",
            "split_after",
        ),
        Turn("Run just that one.", f"suite {TARGET}", "FAILED", exit_code=1),
        Turn("What does it complain of?", f"suite {TARGET}; grep -m 2 -A 6 AssertionError ../suite.log", "AssertionError"),
        Turn(
            "Reproduce it by hand.",
            "python -c \"from more_itertools import split_after as s; print(list(s('ab1', str.isdigit, maxsplit=1)))\"",
            "[['a', 'b', '1'], []]",
        ),
        Turn("Write a little service on top, to see it from outside.", f"cat > ../serve.py <<'END'\n{_SERVER}END\n"),
        Turn("Leave it running.", "python ../serve.py > ../serve.log 2>&1 & server=$!; echo serving", "serving", lives=True),
        Turn("A function to ask it with, once it listens.", f"{_ASK}\n{_WAIT}", '["x"]', state=_ASK, lives=True),
        Turn("Ask.", "ask ab1 1", '[["a", "b", "1"], []]', lives=True),
        Turn("Ask from outside the sandbox, through a tunnel.", act=_ask_through_tunnel, lives=True),
    ]


def _repair() -> list[Turn]:
    return [
        Turn(
            "Read the function.",
            "start=$(grep -n '^def split_after' more_itertools/more.py | cut -d: -f1); "
            'sed -n "$((start + 16)),$((start + 34))p" more_itertools/more.py',
            "yield list(it)",
        ),
        Turn("Do its siblings do the same?", f"cat > ../siblings.py <<'END'\n{_SIBLINGS}END\npython ../siblings.py", "split_after"),
        Turn("A regression test first.", f"cat > tests/test_regression.py <<'END'\n{_REGRESSION}END\n"),
        Turn("It must fail now.", "suite tests.test_regression", "FAILED", exit_code=1),
        Turn("Read the module, change it, send the difference as a patch.", act=_patch),
        Turn(
            "What has changed?",
            f"tar xOzf ../{PROJECT}-{BROKEN}.tar.gz {PROJECT}-{BROKEN}/more_itertools/more.py > ../before.py; "
            "diff ../before.py more_itertools/more.py",
            "if rest:",
            exit_code=1,
        ),
        Turn("Does it compile?", "python -m py_compile more_itertools/more.py && echo compiles", "compiles"),
    ]


def _verify() -> list[Turn]:
    return [
        Turn("The regression test.", "suite tests.test_regression", "OK"),
        Turn("The test that failed.", f"suite {TARGET}", "OK"),
        Turn("The library's own tests.", 'suite "$SUITE" tests.test_recipes', "OK"),
        Turn("The service still runs the old code.", "ask ab1 1", '[["a", "b", "1"], []]', lives=True),
        Turn(
            "Start it again.",
            'kill "$server"; wait "$server"; python ../serve.py > ../serve.log 2>&1 & server=$!\n' + _WAIT,
            '["x"]',
            lives=True,
        ),
        Turn("Ask once more.", "ask ab1 1", '[["a", "b", "1"]]', lives=True),
        Turn("Every small input, to be sure.", f"python - <<'END'\n{_PROPERTY}END\n", "inputs hold"),
        Turn("All of it together.", f'suite "$SUITE" tests.test_recipes tests.test_regression {TARGET}', "OK"),
        Turn(
            "The shell still has all of its state.",
            'kill "$server"; echo "$VIRTUAL_ENV $project"; type suite ask | grep -c function; pwd',
            f"{WORK}/venv {TREE}",
            lives=True,
        ),
        Turn("Take the result home.", act=_take_home),
    ]


def _upload(sandbox: Sandbox, material: Material) -> str:
    sandbox.files.upload(str(material.source), f"{WORK}/{material.source.name}")
    return f"{material.source.name}: {material.source.stat().st_size} bytes"


def _write_tests(sandbox: Sandbox, material: Material) -> str:
    sandbox.files.write(f"{TREE}/tests/test_next.py", material.tests)
    return f"tests/test_next.py: {len(material.tests)} bytes"


def _ask_through_tunnel(sandbox: Sandbox) -> str:
    query = urllib.parse.urlencode({"text": "ab1", "most": "1"})
    with sandbox.tunnel(_PORT) as address, urllib.request.urlopen(f"http://{address}/?{query}", timeout=10) as answer:
        parts = json.load(answer)
    assert parts == [["a", "b", "1"], []], parts
    return json.dumps(parts)


def _patch(sandbox: Sandbox) -> str:
    """The repair: hand on what is left only if there is something left."""
    before = sandbox.files.read(MODULE).decode()
    head, function, tail = before.partition("def split_after(")
    body, following, rest = tail.partition("\ndef ")
    lines = body.splitlines(keepends=True)
    wrong = next(index for index, line in enumerate(lines) if line.strip() == "yield list(it)")
    indent = lines[wrong][: len(lines[wrong]) - len(lines[wrong].lstrip())]
    lines[wrong : wrong + 1] = [f"{indent}rest = list(it)\n", f"{indent}if rest:\n", f"{indent}    yield rest\n"]
    after = head + function + "".join(lines) + following + rest
    name = "more_itertools/more.py"
    diff = "".join(difflib.unified_diff(before.splitlines(True), after.splitlines(True), f"a/{name}", f"b/{name}", n=2))
    result = sandbox.apply_patch(diff, cwd=TREE)
    assert result.success, result
    return f"patched {name}: {len(diff)} bytes of difference"


def _take_home(sandbox: Sandbox) -> str:
    repaired = sandbox.files.read(MODULE)
    assert b"if rest:" in repaired
    names = sorted(entry.name for entry in sandbox.files.list(f"{TREE}/tests"))
    assert "test_regression.py" in names
    return f"more.py, repaired: {len(repaired)} bytes; tests: {', '.join(names)}"
