"""The side of Holdfast: a real stack with the suite's images imported, and a sandbox for each case, through the public SDK.

Owns the stack's data folder below build/docker-suite, which keeps the imported images as long as neither they nor the code that
imports them has changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Iterator, Sequence

from holdfast import HoldfastError, SandboxClient
from holdfast_server import embed

from tests.docker.case import Case, Step
from tests.docker.image import FOLDER, TOP, Image
from tests.docker.reference import CPU, MEMORY, CommandResult


@contextlib.contextmanager
def running_service(images: Sequence[Image]) -> Iterator[SandboxClient]:
    """A separate stack with *images* imported; other images of earlier runs are removed."""
    data = FOLDER / f"stack-{_import_key()}"
    for old in FOLDER.glob("stack-*"):
        if old != data:
            shutil.rmtree(old)
    settings = {"HOLDFAST_REDIS_TIMEOUT_MS": "5000", "HOLDFAST_DEFAULT_DISK": "none"}
    with embed.running_stack(data, settings) as running, SandboxClient(running.url, running.key) as client:
        known = {image.name for image in client.images.list() if image.name.startswith("docker-suite/")}
        wanted = {image.name: image for image in images}
        for name in known - wanted.keys():
            client.images.remove(name)
        for name in wanted.keys() - known:
            client.images.import_(wanted[name].archive, name)
        yield client


class HoldfastSide:
    """One sandbox, from `start` to `remove`."""

    def __init__(self, client: SandboxClient, image: Image, case: Case) -> None:
        self._client = client
        self._image = image
        self._case = case

    def start(self) -> None:
        self._sandbox = self._client.create_sandbox(
            self._image.name,
            cpu=CPU,
            memory=MEMORY,
            ready_timeout_s=60,
            block_network=not self._case.network,
            entrypoint=self._case.entrypoint,
            ulimits=self._case.ulimits or None,
        )

    def run(self, step: Step) -> CommandResult:
        """One command as a caller of the SDK starts it, without options that docker exec does not have."""
        case = self._case
        arguments = ["sh", "-c", step] if isinstance(step, str) else list(step)
        try:
            if case.terminal:
                with self._sandbox.terminal(arguments, cwd=case.cwd, env=case.env or None, user=case.user) as running:
                    output = b"".join(chunk.data for chunk in running)
                    result = running.wait(case.deadline_s)
                return CommandResult(result.exit_code, output.decode(errors="replace"), "")
            result = self._sandbox.exec(
                arguments, cwd=case.cwd, env=case.env or None, user=case.user, input=case.input, timeout=case.deadline_s
            )
        except HoldfastError as error:
            return CommandResult(_exit_code_of(error), "", f"{type(error).__name__}: {error}")
        return CommandResult(None if result.timed_out else result.exit_code, result.stdout, result.stderr)

    def remove(self) -> None:
        sandbox = getattr(self, "_sandbox", None)
        if sandbox is not None:
            sandbox.delete()


def _exit_code_of(error: HoldfastError) -> int | None:
    """The exit code of docker exec in place of an error of the SDK: 127 for a program that does not exist, 126 for a wrong request."""
    return 127 if error.code == "spawn_failed" else 126 if error.fault == "caller" else None


def _import_key() -> str:
    """A digest of the code whose change makes it necessary to import the images again."""
    content = b"".join(path.read_bytes() for path in sorted((TOP / "session_agent/node/images").glob("*.py")))
    return hashlib.sha256(content).hexdigest()[:12]
