"""Fetching an image from a registry with skopeo, if it is installed.

Owns skopeo's command line and the meaning of its failures. It runs with a time limit and without a shell.
"""

from __future__ import annotations

import asyncio
import shutil

from holdfast_wire.errors import HoldfastError

_TIMEOUT_S = 1800


async def fetch(name: str, target: str) -> None:
    """Copy *name* into the OCI layout directory *target*."""
    skopeo = shutil.which("skopeo")
    if skopeo is None:
        raise HoldfastError(
            "unsupported",
            f"cannot pull {name}: skopeo is not installed",
            hint="install skopeo, or import an archive with `holdfast image import`",
        )
    process = await asyncio.create_subprocess_exec(
        skopeo, "copy", "--quiet", f"docker://{name}", f"oci:{target}:image",
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            _, errors = await process.communicate()
    except BaseException:
        process.kill()
        await process.wait()
        raise
    if process.returncode != 0:
        problem = errors.decode("utf-8", "replace").strip()[-500:]
        code = "image_not_found" if "manifest unknown" in problem or "not found" in problem else "image_pull_failed"
        raise HoldfastError(code, f"cannot pull {name}: {problem}", reason="image-pull")
