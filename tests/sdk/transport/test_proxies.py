"""The service behind an HTTP proxy: requests and sessions of both APIs pass one as tunnels, with and without TLS."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from holdfast import ConfigurationError, HoldfastError, SandboxClient
from holdfast._transport import proxies
from holdfast._transport.proxies import Proxy, ProxyError, is_loopback, proxy_for
from holdfast._urls import address_of

from tests.sdk.support.fake_agent import FakeAgent
from tests.support.connect_proxy import ConnectProxy
from tests.support.requires import requires

NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


@pytest.fixture
def proxy() -> Iterator[ConnectProxy]:
    """One that asks for a user and a password."""
    with ConnectProxy() as running:
        yield running


@pytest.fixture(autouse=True)
def not_local(monkeypatch: pytest.MonkeyPatch) -> None:
    """The services of these tests count as other machines."""
    monkeypatch.setattr(proxies, "is_loopback", lambda host: False)
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@requires("namespaces", "redis")
@pytest.mark.parametrize("name", ["HTTP_PROXY", "all_proxy"])
async def test_requests_and_sessions_pass_the_proxy(
    stack: Any, face: Any, proxy: ConnectProxy, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, f"http://user:pa%20ss@127.0.0.1:{proxy.port}")
    client = face.client(stack.url, stack.key)
    sandbox = await client.create_sandbox("host", ready_timeout_s=60)
    assert len((await sandbox.exec("head -c 3000000 /dev/zero")).stdout_bytes) == 3_000_000
    await sandbox.files.write("x", b"y" * 1_000_000)
    assert await sandbox.delete()
    await client.close()
    assert len(proxy.tunnels) >= 2, "one of requests and one of the session"


async def test_tls_passes_the_proxy(face: Any, proxy: ConnectProxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl program for a certificate")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", *subject]
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    monkeypatch.setenv("HTTPS_PROXY", f"http://user:pa%20ss@127.0.0.1:{proxy.port}")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with FakeAgent(tls=context) as agent:
        client = face.client(agent.url, "k")
        sandbox = client.get_sandbox("sb-1")
        assert len((await sandbox.exec("flood 5000000")).stdout_bytes) == 5_000_000
        assert (await sandbox.refresh()).ready
        agent.cut()
        assert (await sandbox.exec("echo again")).stdout == "again\n"
        await sandbox.close()
        await client.close()


async def test_a_proxy_that_refuses_is_named(agent: FakeAgent, face: Any, proxy: ConnectProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.port}")
    client = face.client(agent.url, "k", connect_timeout_s=0.5)
    sandbox = client.get_sandbox("sb-1")
    for call in (sandbox.exec, lambda _: sandbox.refresh()):
        with pytest.raises(HoldfastError, match=rf"proxy 127\.0\.0\.1:{proxy.port} refuses the tunnel: 407") as refused:
            await call("true")
        assert "NO_PROXY" in str(refused.value)
        assert "holdfast up" not in str(refused.value)
    await sandbox.close()
    await client.close()
    assert agent.attaches == 0


async def test_a_proxy_that_cannot_be_reached_is_named(face: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://user:secret@127.0.0.1:9")
    client = face.client("http://holdfast.example", "k", connect_timeout_s=0.5)
    sandbox = client.get_sandbox("sb-1")
    for call in (sandbox.exec, lambda _: sandbox.refresh()):
        with pytest.raises(HoldfastError, match=r"the proxy 127\.0\.0\.1:9 cannot be reached: Conn") as failed:
            await call("true")
        assert "secret" not in str(failed.value)
    await sandbox.close()
    await client.close()


async def test_a_proxy_that_does_not_answer_is_named(face: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = f"127.0.0.1:{listener.getsockname()[1]}"
        monkeypatch.setenv("HTTP_PROXY", place)
        client = face.client("http://holdfast.example", "k", connect_timeout_s=0.3)
        sandbox = client.get_sandbox("sb-1")
        for call in (sandbox.exec, lambda _: sandbox.refresh()):
            with pytest.raises(HoldfastError, match=f"the proxy {place}"):
                await call("true")
        await sandbox.close()
        await client.close()


@pytest.mark.parametrize("url", ["socks5://h:1080", "https://h:443", "http://", "http://h:x"])
def test_other_proxies_are_refused_by_name(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("HTTPS_PROXY", url)
    with pytest.raises(ConfigurationError, match="only HTTP proxies"):
        SandboxClient("https://holdfast.example", "k")
    SandboxClient("http://holdfast.example", "k").close()


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize(("variable", "tls"), [("HTTP_PROXY", False), ("HTTPS_PROXY", True), ("ALL_PROXY", False), ("ALL_PROXY", True)])
def test_every_variable_counts_in_either_case(monkeypatch: pytest.MonkeyPatch, variable: str, tls: bool, small: bool) -> None:
    address = address_of(f"http{'s' if tls else ''}://holdfast.example")
    monkeypatch.setenv(variable.lower() if small else variable, "http://user:p%40ss@proxy.example:3128")
    assert proxy_for(address) == Proxy("proxy.example", 3128, f"Basic {b64encode(b'user:p@ss').decode()}")
    monkeypatch.setenv("no_proxy" if small else "NO_PROXY", "holdfast.example")
    assert proxy_for(address) is None


@pytest.mark.parametrize(
    ("no_proxy", "direct"),
    [
        ("", False),
        ("*", True),
        ("example.com", True),
        (".example.com", True),
        ("other.com", False),
        ("h.example.com:8080", True),
        ("x,h.example.com", True),
    ],
)
def test_what_no_proxy_names_is_reached_directly(monkeypatch: pytest.MonkeyPatch, no_proxy: str, direct: bool) -> None:
    monkeypatch.setenv("HTTP_PROXY", "proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", no_proxy)
    found = proxy_for(address_of("http://h.example.com:8080"))
    assert found == (None if direct else Proxy("proxy.example", 3128))


def test_this_machine_is_reached_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.example:3128")
    for host in ("localhost", "127.0.0.1", "127.1.2.3", "[::1]"):
        assert proxy_for(address_of(f"http://{host}:8080"), is_loopback) is None
    for host in ("localhost.example.com", "127.example.com", "10.0.0.1", "[fe80::1]"):
        assert proxy_for(address_of(f"http://{host}:8080"), is_loopback) is not None


@pytest.mark.parametrize(
    ("answer", "refused"),
    [
        (b"HTTP/1.1 200 Connection established\r\n\r\n", ""),
        (b"HTTP/1.0 200 OK\r\nVia: x\r\n\r\n", ""),
        (b"HTTP/1.1 403 Forbidden\r\n\r\n", "refuses the tunnel: 403"),
        (b"HTTP/1.1 200 OK\r\n\r\nbytes of its own", "refuses the tunnel"),
        (b"SSH-2.0-x\r\n\r\n", "does not speak HTTP"),
        (b"x" * 20_000, "does not speak HTTP"),
    ],
)
def test_the_proxys_answer(answer: bytes, refused: str) -> None:
    proxy = Proxy("h", 1)
    if refused:
        with pytest.raises(ProxyError, match=refused):
            proxy.answered(answer)
    else:
        assert not proxy.answered(answer[:-1])
        assert proxy.answered(answer)
