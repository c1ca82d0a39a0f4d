"""P11: upload and download of a file of 1 GiB, compared with a bare relay that moves as many bytes, and the growth of each process.

Owns the file on both sides and its check. The SDK's client is a separate process (`python -m tests.bench.transfers`): in the bench's own
process, memory left by other figures would hide the growth.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from holdfast import AsyncSandbox, AsyncSandboxClient

from tests.bench import prototype
from tests.bench.figures import Figure, at_least
from tests.bench.memory import Growth, in_pid_namespace

_GIB = 1 << 30
_MIB = 1 << 20
_SHARE = 0.4
_GROWTH_MIB = 32
_REMOTE = "/tmp/holdfast-bench-transfer"


async def p11(sandbox: AsyncSandbox, gateway_pid: int, environment: Mapping[str, str], size: int = _GIB) -> list[Figure]:
    """P11u (upload), P11d (download) and P11m (the growth of the process that grew most)."""
    before = await _relayed(size // 2)
    link = (await sandbox.exec(["readlink", "/proc/self/ns/pid"])).stdout.strip()
    watched = {"gateway": Growth(gateway_pid)} | {f"sandbox {pid}": Growth(pid) for pid in in_pid_namespace(link)}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.bench.transfers", sandbox.id, str(size)), stdout=asyncio.subprocess.PIPE, env=dict(environment)
    )
    answer, _ = await process.communicate()
    assert process.returncode == 0, f"the client of the transfers ended with {process.returncode}"
    measured = json.loads(answer)
    floor = size / (before + await _relayed(size // 2)) / 1e6
    grown = {name: growth.peak_bytes() for name, growth in watched.items()} | {"client": measured["client_grew_bytes"]}
    who, most = max(grown.items(), key=lambda item: item[1])
    how = f"one file of {size >> 20} MiB through the whole chain, its SHA-256 compared; floor: the bare relay, half before and half after"
    how_memory = (
        f"the largest of client, gateway and each process of the sandbox during both transfers: {who}; by the high-water mark of its RSS"
    )
    return [
        at_least("P11u", "upload of 1 GiB", size / measured["upload_s"] / 1e6, "MB/s", floor, _SHARE, None, how),
        at_least("P11d", "download of 1 GiB", size / measured["download_s"] / 1e6, "MB/s", floor, _SHARE, None, how),
        Figure(
            *("P11m", "memory that a transfer adds to a process", most / _MIB, "MiB", None, None, f"≤ {_GROWTH_MIB} MiB", ""),
            most <= _GROWTH_MIB * _MIB,
            how_memory,
        ),
    ]


async def _relayed(size: int) -> float:
    """Seconds to move this many bytes through the bare relay."""
    with prototype.running() as bare:
        async with prototype.client(bare.folder) as client:
            started = time.perf_counter()
            await client.zeros(size)
            return time.perf_counter() - started


async def _transfer(sandbox_id: str, size: int) -> dict[str, float]:
    """Upload, download and compare; the seconds of each and the growth of this process."""
    with tempfile.TemporaryDirectory(prefix="hf-bench-transfer-") as folder:
        source, back = Path(folder) / "source", Path(folder) / "back"
        block = os.urandom(_MIB)
        with source.open("wb") as file:
            for _ in range(size // _MIB):
                file.write(block)
        async with AsyncSandboxClient() as client:
            sandbox = client.get_sandbox(sandbox_id)
            try:
                await sandbox.exec(["true"])
                growth = Growth(os.getpid())
                started = time.perf_counter()
                await sandbox.files.upload(source, _REMOTE)
                uploaded = time.perf_counter()
                await sandbox.files.download(_REMOTE, back)
                downloaded = time.perf_counter()
                grown = growth.peak_bytes()
            finally:
                await sandbox.files.remove(_REMOTE, missing_ok=True)
        assert _sha256(back) == _sha256(source), "what came back is not what was sent"
    return {"upload_s": uploaded - started, "download_s": downloaded - uploaded, "client_grew_bytes": grown}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_transfer(sys.argv[1], int(sys.argv[2])))))
