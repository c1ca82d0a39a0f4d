"""Sessions over TLS: certificates are checked, and large output passes through the encrypted socket, on both faces."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from holdfast import ServiceUnavailableError

from tests.sdk.support.fake_agent import FakeAgent

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl program for a certificate")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "cert.pem", folder / "key.pem"
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", *subject]
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return certificate, key


@pytest.fixture
def agent(certificate: tuple[Path, Path]) -> Iterator[FakeAgent]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    with FakeAgent(tls=context) as running:
        yield running


async def test_sessions_run_over_tls(
    sandbox: Any, agent: FakeAgent, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    shell = await sandbox.shell()
    assert (await shell.run("echo secret")).stdout == "secret\n"
    assert len((await sandbox.exec("flood 20000000")).stdout_bytes) == 20_000_000
    data = b"y" * 5_000_000
    assert (await sandbox.exec("cat", input=data)).stdout_bytes == data
    agent.cut()
    assert (await shell.run("echo again")).stdout == "again\n"


async def test_a_certificate_nobody_vouches_for_is_refused(sandbox: Any) -> None:
    with pytest.raises(ServiceUnavailableError, match="certificate") as refused:
        await sandbox.exec("true")
    assert (refused.value.retryable, refused.value.fault) == (False, "caller")
    assert "HOLDFAST_URL" in refused.value.hint
