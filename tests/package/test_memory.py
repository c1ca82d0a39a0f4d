"""What an idle agent of the bundle does not load, and that what stands in for it gives the same answers."""

from __future__ import annotations

import ast
import hashlib
import hmac
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from session_agent.agent.startup.handlers import FACTORIES
from session_agent.agent.startup.lazy_handlers import LazyHandlers
from session_agent.bundle.build import Bundle
from session_agent.bundle.compiling import without_docs
from session_agent.bundle.stand_ins import hashlib as their_hashlib
from session_agent.bundle.stand_ins import hmac as their_hmac
from session_agent.bundle.stand_ins import secrets as their_secrets
from tests.package.test_bundle import interpreter

pytestmark = pytest.mark.timeout(120)

ANONYMOUS_KIB = 11 * 1024
"""9.9 MiB with Python 3.11 on amd64."""
_STARTED = """
import contextlib, json, marshal, os, sys
with open(f"{sys.prefix}/agent/main.pyc", "rb") as file:
    entry = marshal.loads(file.read()[16:])
sys.argv = ["agent", "no", "command"]
with contextlib.suppress(SystemExit):
    exec(entry, {"__name__": "__main__"})
"""
"""The bundle's first module, without an agent."""
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
    os.write(1, json.dumps([anonymous, crypto, sorted(waiting), sorted(sys.modules)]).encode())
    os._exit(0)
server._settle_in = report
server.main()
"""


def run(bundle: Bundle, code: str, **environment: str) -> str:
    return interpreter(bundle.folder, "-I", "-S", "-B", "-X", "utf8", "-c", _STARTED + code, **environment)


def test_an_idle_agent_is_small(bundle: Bundle, tmp_path: Path) -> None:
    environment = {"HOLDFAST_AGENT_LISTEN": f"unix://{tmp_path}/agent.sock", "HOLDFAST_AGENT_TOKEN": "t" * 64}
    anonymous_kib, crypto, waiting, modules = json.loads(run(bundle, _SETTLED, **environment))
    assert waiting == ["inspect", "ipaddress", "locale", "subprocess", "tokenize"]
    assert not crypto
    assert not {"_hashlib", "ast", "dis", "random", "session_agent.agent.files.patch", "session_agent.agent.network.tunnel"} & set(modules)
    assert {"session_agent.agent.shell.shell", "session_agent.agent.files.operations"} <= set(modules)
    assert 1024 < anonymous_kib < ANONYMOUS_KIB


def test_a_module_comes_when_something_of_it_is_asked_for(bundle: Bundle) -> None:
    code = """
import inspect, subprocess, tokenize
early = inspect
from inspect import signature
print(signature(lambda a, b=1: 0), sys.modules["inspect"] is early, early.getmodule is inspect.getmodule)
print(subprocess.PIPE, subprocess.run(["/proc/self/exe", "--help"], stdout=subprocess.PIPE).returncode)
try:
    early.nothing_of_it
except AttributeError as error:
    print(error)
sys.path.clear()
import ipaddress
try:
    ipaddress.ip_address("127.0.0.1")
except ModuleNotFoundError as error:
    print(error, sys.modules["ipaddress"] is ipaddress)
"""
    lines = run(bundle, code).splitlines()
    assert lines[0] == "(a, b=1) False True"
    assert lines[1].startswith("-1 ")
    assert lines[2] == "module 'inspect' has no attribute 'nothing_of_it'"
    assert lines[3] == "No module named 'ipaddress' True"


def test_annotations_of_the_bundle_are_names(bundle: Bundle) -> None:
    code = """
import typing
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Generic, NewType, Protocol, TypeVar, Union, cast, overload
T = TypeVar("T", bound=int)
class Some(Protocol[T]): ...
class Base(Some[int], Generic[T]): ...
class Last(Base[str]): ...
@dataclass
class Point:
    x: "int"
    seen: ClassVar[Union[int, None] | str] = 0
    named: "ClassVar[Any]" = 1
print([one.name for one in fields(Point)], Point(3), NewType("Id", str)("a"), cast("int", 4), overload(len) is len, typing.Any is Any)
print(isinstance(Last(), Generic))
"""
    assert run(bundle, code) == "['x'] Point(x=3) a 4 True True\nTrue\n"


def pieces(seed: int) -> Iterator[bytes]:
    chance = random.Random(seed)
    for _ in range(chance.randrange(6)):
        yield chance.randbytes(chance.choice((0, 1, 63, 64, 1000, 16 * 1024, 40_000)))


@pytest.mark.parametrize("seed", range(40))
def test_hashes_are_the_same(seed: int) -> None:
    ours, real, whole = their_hashlib.sha256(), hashlib.sha256(), b""
    for piece in pieces(seed):
        ours.update(memoryview(piece))
        real.update(piece)
        whole += piece
        copied = ours.copy()
        assert ours.hexdigest() == copied.hexdigest() == real.hexdigest()
    assert their_hashlib.sha256(whole).digest() == their_hashlib.new("sha256", whole).digest() == real.digest()
    assert their_hashlib.sha1(whole).digest() == hashlib.sha1(whole).digest()
    key = whole[: seed * 5]
    assert their_hmac.digest(key, whole, their_hashlib.sha256) == hmac.digest(key, whole, "sha256")
    assert their_hmac.new(key, whole, their_hashlib.sha256).hexdigest() == hmac.new(key, whole, hashlib.sha256).hexdigest()


def test_what_hashes_keep_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(their_hashlib, "_room", 40_000)
    many = [their_hashlib.sha256(b"x" * 10_000) for _ in range(100)]
    assert sum(len(one._kept) for one in many) == 40_000
    assert {one.digest() for one in many} == {hashlib.sha256(b"x" * 10_000).digest()}
    long = their_hashlib.sha256()
    for _ in range(10):
        long.update(b"y" * 10_000)
    assert not long._kept
    del many
    assert their_hashlib._room == 40_000


def test_a_hash_without_openssl_is_still_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "_hashlib", None)  # as while no descriptor is left to open it with
    assert their_hashlib.sha256(b"x" * 10**6).digest() == hashlib.sha256(b"x" * 10**6).digest()


def test_unknown_hashes_are_refused() -> None:
    with pytest.raises(ValueError, match="unsupported hash type md4"):
        their_hashlib.new("md4")
    with pytest.raises(TypeError):
        their_hashlib.sha256("text")
    with pytest.raises(TypeError):
        their_hmac.new(b"key")


def test_random_numbers_have_as_many_bits_as_asked_for() -> None:
    for bits in (1, 7, 8, 9, 40, 64):
        numbers = [their_secrets.randbits(bits) for _ in range(300)]
        assert 0 <= min(numbers) <= max(numbers) < 1 << bits
        assert max(numbers) >= 1 << (bits - 1)
    assert len(their_secrets.token_hex(8)) == len(their_secrets.token_bytes(16)) == 16


def test_doc_strings_are_left_out() -> None:
    text = '"""A."""\nfrom __future__ import annotations\ndef f():\n  "b"\nclass C:\n  "c"\n  x = "kept"\n'
    text += '@d\nclass D:\n  "d"\n@d\nclass E: pass'
    kept = 'from __future__ import annotations\ndef f():\n  pass\nclass C:\n  x = "kept"\n@d\nclass D: "."\n@d\nclass E:\n  "."\n  pass'
    assert ast.unparse(without_docs(text)) == ast.unparse(ast.parse(kept))
    compile(without_docs(text), "x", "exec")
    compile(without_docs(""), "x", "exec")


def test_every_kind_of_channel_is_there() -> None:
    handlers = LazyHandlers()
    assert dict(handlers) == dict(FACTORIES)
    assert len(handlers) == len(FACTORIES) == 12
    assert handlers.get("nothing") is None
