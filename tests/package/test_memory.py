"""The modules that an idle agent of the bundle loads, and those that it loads later."""

from __future__ import annotations

import ast
import hmac
import json
import sys
from pathlib import Path

import pytest
from holdfast_wire.session.channels import CONNECTION, IMPERATIVES

from session_agent.agent.startup.handlers import LazyHandlers
from session_agent.bundle import store
from session_agent.bundle.build import Bundle
from session_agent.bundle.compiling import without_docs
from tests.package.test_bundle import interpreter

pytestmark = pytest.mark.timeout(120)

_WITH_INSPECT = sys.version_info >= (3, 14)
ANONYMOUS_KIB = (13 if _WITH_INSPECT else 11) * 1024
"""10.5 MiB with Python 3.11 on amd64, 12.4 with 3.14."""
_NEVER = {"random", "session_agent.agent.files.patches.patch", "session_agent.agent.network.tunnel"} | (
    set() if _WITH_INSPECT else {"ast", "dis"}
)
_STARTED = """
import marshal, os, sys
with open(f"{sys.prefix}/agent/main.pyc", "rb") as file:
    entry = marshal.loads(file.read()[16:])
sys.argv = ["agent", "no", "command"]
try:
    exec(entry, {"__name__": "__main__"})
except SystemExit:
    pass
"""
"""Runs the bundle's first module without starting an agent."""
_SETTLED = """
import session_agent.agent.startup.server as server
settle = server._settle_in
def report():
    settle()
    with open("/proc/self/smaps_rollup") as file:
        (anonymous,) = (int(line.split()[1]) for line in file if line.startswith("Anonymous:"))
    with open("/proc/self/maps") as file:
        crypto = "libcrypto" in file.read()
    waiting = [name for name, module in sys.modules.items() if type(module).__name__ == "_Later"]
    found = {name: vars(module) for name, module in sys.modules.items() if module is not None and name != "__main__"}
    read = {name: type(facts["__loader__"]).__name__ for name, facts in found.items() if "__file__" in facts}
    modules = sorted(sys.modules)
    import json
    os.write(1, json.dumps([anonymous, crypto, sorted(waiting), modules, read]).encode())
    os._exit(0)
server._settle_in = report
server.main()
"""


def run(bundle: Bundle, code: str, **environment: str) -> str:
    return interpreter(bundle.folder, "-I", "-S", "-B", "-X", "utf8", "-c", _STARTED + code, **environment)


def test_an_idle_agent_is_small(bundle: Bundle, tmp_path: Path) -> None:
    environment = {"HOLDFAST_AGENT_LISTEN": f"unix://{tmp_path}/agent.sock", "HOLDFAST_AGENT_TOKEN": "t" * 64}
    anonymous_kib, crypto, waiting, modules, _ = json.loads(run(bundle, _SETTLED, **environment))
    assert waiting == sorted(store.LATER)
    assert not crypto
    assert not _NEVER & set(modules)
    assert {"session_agent.agent.shell.shell", "session_agent.agent.files.trees.operations"} <= set(modules)
    assert 1024 < anonymous_kib < ANONYMOUS_KIB


def test_an_idle_agent_has_its_modules_from_one_file(bundle: Bundle, tmp_path: Path) -> None:
    environment = {"HOLDFAST_AGENT_LISTEN": f"unix://{tmp_path}/agent.sock", "HOLDFAST_AGENT_TOKEN": "t" * 64}
    *_, read = json.loads(run(bundle, _SETTLED, **environment))
    stored = {module.name for module in store.modules()}
    before = {"encodings", "encodings.aliases", "encodings.utf_8"}  # of the interpreter itself
    by_option_c = {"linecache"}  # since Python 3.13
    assert {name for name, loader in read.items() if loader == "SourcelessFileLoader"} - by_option_c == before
    assert {name for name, loader in read.items() if loader in ("_Loader", "ExtensionFileLoader")} <= stored
    assert len(stored - set(read)) < (20 if sys.version_info >= (3, 15) else 10), stored - set(read)


def test_a_lazy_module_is_loaded_at_its_first_use(bundle: Bundle) -> None:
    code = """
import textwrap, tokenize
early = textwrap
from textwrap import shorten
print(shorten("a  b", 9), sys.modules["textwrap"] is early, early.fill is textwrap.fill)
try:
    early.nothing_of_it
except AttributeError as error:
    print(error)
sys.path.clear()
import locale
try:
    locale.getlocale()
except ModuleNotFoundError as error:
    print(error, sys.modules["locale"] is locale)
"""
    lines = run(bundle, code).splitlines()
    assert lines[0] == "a b False True"
    assert lines[1] == "module 'textwrap' has no attribute 'nothing_of_it'"
    assert lines[2] == "No module named 'locale' True"


def test_openssl_is_loaded_only_to_hash_long_data(bundle: Bundle) -> None:
    code = """
import hashlib, hmac
from session_agent.agent.output.checksums import Sha256
loaded = lambda: "libcrypto" in open("/proc/self/maps").read()
short, long = Sha256(b"short"), Sha256(b"x" * 4000)
print(short.hexdigest() == hashlib.sha256(b"short").hexdigest(), hmac.new(b"k", b"m", "sha256").hexdigest()[:8], loaded())
long.update(b"x" * 4000)
print(long.hexdigest() == hashlib.sha256(b"x" * 8000).hexdigest(), loaded())
"""
    expected = hmac.new(b"k", b"m", "sha256").hexdigest()[:8]
    assert run(bundle, code).splitlines() == [f"True {expected} False", "True True"]


def test_doc_strings_are_left_out() -> None:
    text = '"""A."""\nfrom __future__ import annotations\ndef f():\n  "b"\nclass C:\n  "c"\n  x = "kept"\n'
    text += '@d\nclass D:\n  "d"\n@d\nclass E: pass'
    kept = 'from __future__ import annotations\ndef f():\n  pass\nclass C:\n  x = "kept"\n@d\nclass D: "."\n@d\nclass E:\n  "."\n  pass'
    assert ast.unparse(without_docs(text)) == ast.unparse(ast.parse(kept))
    compile(without_docs(text), "x", "exec")
    compile(without_docs(""), "x", "exec")


def test_every_kind_of_channel_has_a_handler() -> None:
    handlers = LazyHandlers()
    opened = set(IMPERATIVES) - {CONNECTION}  # the agent opens those itself
    assert {kind: factory.__name__ for kind, factory in handlers.items()} == {kind: f"open_{kind}" for kind in opened}
    assert handlers.get("nothing") is None
