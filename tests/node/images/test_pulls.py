"""Pulls by the real skopeo: what they may reach, with which rights they run, and that the store is free meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from holdfast_wire.errors import HoldfastError

from session_agent.node.images import registries
from session_agent.node.images.fetch_proxy import FetchProxy
from session_agent.node.images.pull import PullSettings
from session_agent.node.images.registries import RefusedError, Registries, is_public, parse
from session_agent.node.images.store import ImageStore
from tests.node.images.registry import Registry, registry
from tests.node.ociimages import BASE, oci_layout
from tests.support.requires import requires
from tests.support.until import until_async

pulls = requires("skopeo", "namespaces")
CERTIFICATES = Path("/etc/containers/certs.d")


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """Also as the host ``registry.test``, a name that the node resolves to a private address."""
    with registry(oci_layout(tmp_path / "layout", [BASE]), tmp_path / "certificates") as running:
        resolve = asyncio.BaseEventLoop.getaddrinfo
        place = "127.0.0.1"

        async def resolved(self: asyncio.BaseEventLoop, host: str, *given: Any, **more: Any) -> Any:
            return await resolve(self, place if host == "registry.test" else host, *given, **more)

        monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", resolved)
        folders = [CERTIFICATES / f"{name}:{running.port}" for name in ("localhost", "registry.test")]
        for folder in folders:
            folder.mkdir(parents=True)
            shutil.copy(tmp_path / "certificates" / "ca.crt", folder)
        try:
            yield running
        finally:
            for folder in folders:
                shutil.rmtree(folder)


def opened(tmp_path: Path, *entries: str) -> ImageStore:
    made = ImageStore(str(tmp_path / "images"), None, pulls=PullSettings(Registries(entries)))
    made.open()
    return made


@pulls
@requires("root")
@pytest.mark.parametrize("name", ["localhost", "registry.test"])
async def test_a_pull_from_a_registry_that_the_operator_named(served: Registry, tmp_path: Path, name: str) -> None:
    host = f"{name}:{served.port}"
    store = opened(tmp_path, host)
    image = await store.pull(f"{host}/team/tool:1", "ada")
    assert image["name"] == f"{host}/team/tool:1"
    assert store.resolve(f"{host}/team/tool:1", "ada").digest == image["digest"]
    (progress,) = store.progress
    assert (progress.state, progress.owner, progress.error) == ("done", "ada", "")
    assert progress.received_bytes > 1000
    assert os.listdir(tmp_path / "images" / "tmp") == []


@pulls
@requires("root")
async def test_the_store_is_free_while_an_image_is_fetched(served: Registry, tmp_path: Path) -> None:
    store = opened(tmp_path, served.host)
    served.held.clear()
    pulling = asyncio.create_task(store.pull(f"{served.host}/slow"))
    await until_async(served.asked.is_set, deadline_s=60, what="the pull to ask for a layer")
    async with asyncio.timeout(60):
        await store.import_path(str(served.layout), "other")
        await store.remove("other")
    assert not pulling.done()
    assert store.progress[0].state == "fetching"
    served.held.set()
    await pulling


@pulls
@requires("root")
async def test_a_cancelled_pull_leaves_nothing(served: Registry, tmp_path: Path) -> None:
    store = opened(tmp_path, served.host)
    served.held.clear()
    pulling = asyncio.create_task(store.pull(f"{served.host}/slow"))
    await until_async(served.asked.is_set, deadline_s=60, what="the pull to ask for a layer")
    pulling.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await pulling
    assert os.listdir(tmp_path / "images" / "tmp") == []
    assert store.progress[0].state == "failed"


@pulls
async def test_the_error_of_a_failed_pull_is_a_message_not_a_line_of_a_log(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        host = f"localhost:{closed.getsockname()[1]}"
        with pytest.raises(HoldfastError) as failed:
            await opened(tmp_path, host).pull(f"{host}/tool")
    assert failed.value.code == "image_pull_failed"
    assert f"{host}/v2/" in failed.value.message
    assert "level=" not in failed.value.message
    assert '\\"' not in failed.value.message


@pulls
@requires("root")
async def test_a_redirect_to_this_machine_is_refused(served: Registry, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as inside:
        inside.setblocking(False)
        store = opened(tmp_path, served.host)
        for target in (f"https://127.0.0.1:{inside.getsockname()[1]}/x", f"http://127.0.0.1:{inside.getsockname()[1]}/x"):
            served.redirect = target
            with pytest.raises(HoldfastError) as refused:
                await store.pull(f"{served.host}/tool")
            assert refused.value.code == "image_pull_failed"
        with pytest.raises(BlockingIOError):
            inside.accept()


@pulls
@requires("root")
async def test_a_pull_runs_without_rights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program in the place of skopeo reports what it has."""
    tools = Path("/tmp") / f"holdfast-tools-{os.getpid()}"
    tools.mkdir(mode=0o755)
    script = (
        "#!/bin/sh\n"
        'exec 1>&2; grep -E "^(Uid|Gid|Groups|CapEff|CapPrm|CapAmb|NoNewPrivs)" /proc/self/status; ls /proc/self/fd; ip -o link 2>/dev/null'
        "; cat /proc/net/dev; cat /root/.bashrc && echo readable; env; exit 1\n"
    )
    (tools / "skopeo").write_text(script)
    (tools / "skopeo").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("HOLDFAST_SECRET", "not for pulls")
    store = ImageStore(str(tmp_path / "images"), None, pulls=PullSettings(user_id=1_879_048_191))
    store.open()
    monkeypatch.setattr("session_agent.node.images.pull._MOST_OUTPUT", 100_000)
    try:
        with pytest.raises(HoldfastError) as failed:
            await store.pull("python:3")
    finally:
        shutil.rmtree(tools)
    report = failed.value.message
    for line in (
        "Uid:\t1879048191\t1879048191",
        "Gid:\t1879048191",
        "CapEff:\t0000000000000000",
        "CapPrm:\t0000000000000000",
        "NoNewPrivs:\t1",
    ):
        assert line in report, report
    assert "readable" not in report
    assert "not for pulls" not in report
    assert [line.split(":")[0].strip() for line in report.splitlines() if ":" in line and " 0 " in line and "lo" in line[:8]] == ["lo"]
    assert "eth" not in report


@pytest.mark.parametrize(
    ("name", "entries", "allowed"),
    [
        ("python:3", ("*",), True),
        ("ghcr.io/a/b", ("*",), True),
        ("127.0.0.1:22/x", ("*",), False),
        ("example.com:8443/x", ("*",), False),
        ("example.com:8443/x", ("*", "example.com:8443"), True),
        ("localhost:5000/x", ("localhost:5000",), True),
        ("ghcr.io/a/b", ("docker.io",), False),
        ("python:3", ("docker.io",), True),
        ("reg.team.example/x", ("*.team.example",), True),
    ],
)
async def test_the_registry_of_a_name_must_be_allowed(tmp_path: Path, name: str, entries: tuple[str, ...], allowed: bool) -> None:
    from session_agent.node.images import names

    if allowed:
        Registries(entries).check(names.normalise(name))
    else:
        with pytest.raises(HoldfastError, match="may not be pulled") as refused:
            Registries(entries).check(names.normalise(name))
        assert (refused.value.code, refused.value.fault) == ("invalid_argument", "caller")


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.100.100.200", "0.0.0.0", "224.0.0.1",
        "255.255.255.255", "168.63.129.16", "::1", "::", "fe80::1%1", "fd00:ec2::254", "::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:a00:1::",
        "ff02::1", "192.0.2.1",
    ],
)  # fmt: skip
def test_addresses_that_only_this_machine_reaches_are_not_public(address: str) -> None:
    assert not is_public(address)


def test_public_addresses_are_public_unless_they_are_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_public("1.1.1.1")
    assert is_public("2606:4700::1111")
    monkeypatch.setattr(registries, "own_addresses", lambda: ["1.1.1.1/32"])
    assert not is_public("1.1.1.1")


@pytest.mark.parametrize("text", ["a b", "https://x", "x:port", "user@x", ":443"])
def test_a_list_that_cannot_be_used_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"HOLDFAST_REGISTRIES|invalid literal"):
        parse(text)
    assert parse(" docker.io, *.x:5000 ,").entries == ("docker.io", "*.x:5000")
    assert parse("") == Registries()


async def _through(proxy: FetchProxy, request: bytes) -> bytes:
    listener = socket.create_server(("127.0.0.1", 0))
    await proxy.start(listener)
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    writer.write(request)
    async with asyncio.timeout(60):
        answer = await reader.read()
    writer.close()
    await proxy.aclose()
    return answer


@pytest.mark.parametrize(
    "target",
    [
        "CONNECT 127.0.0.1:443", "CONNECT localhost:443", "CONNECT [::1]:443", "CONNECT 169.254.169.254:443", "CONNECT 0x7f000001:443",
        "CONNECT 2130706433:443", "CONNECT example.com:22", "GET http://127.0.0.1/", "GET http://169.254.169.254/latest", "GET /x",
        "CONNECT :443",
    ],
)  # fmt: skip
async def test_a_connection_to_this_machine_is_refused(target: str) -> None:
    proxy = FetchProxy(Registries(), lambda size: None)
    answer = await _through(proxy, f"{target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert answer.split()[1] in (b"403", b"502")


async def test_a_name_that_resolves_to_this_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolve(host: str, port: int, **_: object) -> list[object]:
        return [
            (0, 0, 0, "", (address, port)) for address in {"evil.example": ["127.0.0.1"], "mixed.example": ["10.0.0.1", "1.1.1.1"]}[host]
        ]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    with pytest.raises(RefusedError, match="no public address"):
        await Registries().addresses("evil.example", 443)
    assert await Registries().addresses("mixed.example", 443) == ["1.1.1.1"]
    assert await Registries(("evil.example",)).addresses("evil.example", 443) == ["127.0.0.1"]


async def test_images_belong_to_owners(store: ImageStore, tmp_path: Path) -> None:
    """An owner's image comes before the shared one of the same name, and another owner's does not exist."""
    layouts = {name: str(oci_layout(tmp_path / name, [BASE], {"Env": [f"WHOSE={name}"]})) for name in ("shared", "ada", "bob")}
    await store.import_path(layouts["shared"], "tool")
    await store.import_path(layouts["ada"], "tool", "ada")
    await store.import_path(layouts["bob"], "mine", "bob")

    def whose(name: str, owner: str) -> str:
        return store.resolve(name, owner).env["WHOSE"]

    assert [whose("tool", owner) for owner in ("ada", "bob", "")] == ["ada", "shared", "shared"]
    assert whose("mine", "bob") == "bob"
    digest = store.resolve("mine", "bob").digest
    for name in ("mine", f"mine@{digest}", digest):
        unknown = name.replace("mine", "none").replace(digest, "sha256:" + "0" * 64)
        seen, never = [await _refusals(store, wanted) for wanted in (name, unknown)]
        assert seen == never
        assert {code for code, _ in seen} == {"image_not_found"}
    assert [(image["name"], image["shared"]) for image in store.list("ada")] == [("host", True), ("tool", True), ("tool", False)]
    with pytest.raises(HoldfastError) as kept:
        await store.remove("tool", "bob")
    assert kept.value.code == "permission_denied"
    await store.remove("tool", "ada")
    assert whose("tool", "ada") == "shared"
    again = ImageStore(str(tmp_path / "images"), None)
    again.open()
    assert [image["name"] for image in again.list("bob")] == ["host", "mine", "tool"]
    assert json.loads(json.dumps(again.list("ada"))) == store.list("ada")


async def _refusals(store: ImageStore, name: str) -> list[tuple[str, str]]:
    """What each operation answers to ada."""
    found = []
    for attempt in (store.remove(name, "ada"), store.tag(name, "x", "ada"), store.export(name, "/x", "ada"), _resolved(store, name)):
        with pytest.raises(HoldfastError) as missing:
            await attempt
        found.append((missing.value.code, missing.value.message.replace(name, "")))
    return found


async def _resolved(store: ImageStore, name: str) -> None:
    store.resolve(name, "ada")
