"""Another reference: a container of rootless podman, for an ordinary user's sandboxes (``python -m tests.docker --podman``).

Owns the image in podman's storage, one container for each case, and the options that a machine without systemd and without /dev/net/tun
leaves: no network, no limits, runc, overlay mounts by the kernel. Run it as an ordinary user, in a folder (HOLDFAST_DOCKER_SUITE) with
images that root has built: it builds none.
"""

from __future__ import annotations

import secrets
import subprocess
import threading
from collections.abc import Sequence

from tests.docker.case import Case, Step
from tests.docker.image import Image
from tests.docker.reference import CommandResult

_PODMAN = ["podman", "--log-level", "error", "--storage-driver", "overlay", "--runtime", "runc", "--cgroup-manager", "cgroupfs"]
_PODMAN += ["--storage-opt", "overlay.ignore_chown_errors=true"]  # the image has owners outside of a user's 65 536 ids
_START_S = 600
_loading = threading.Lock()
_loaded = dict[str, str]()


class PodmanReference:
    """One container, from ``start`` to ``remove``."""

    def __init__(self, image: Image, case: Case) -> None:
        self._image = image
        self._case = case
        self._name = f"docker-suite-{secrets.token_hex(6)}"

    def start(self) -> None:
        """``podman run -d``, with a command that does nothing unless the case requests the image's own."""
        image = _load(self._image)
        limits = [f"--ulimit={name}={soft}:{hard}" for name, (soft, hard) in self._case.ulimits.items()]
        bare = self._image.name.startswith("docker-suite/bare")
        idle = ["--entrypoint=[]", image, *(["/busybox"] if bare else []), "tail", "-f", "/dev/null"]
        command = [image] if self._case.entrypoint else idle
        done = _podman("run", "--detach", "--network=none", "--name", self._name, *limits, *command, timeout_s=_START_S)
        if done.exit_code != 0:
            raise RuntimeError(f"podman did not start the reference container: {done.stderr}")

    def run(self, step: Step) -> CommandResult:
        """``podman exec``."""
        case = self._case
        options = [f"--env={name}={value}" for name, value in case.env.items()]
        options += [*(["--user", case.user] if case.user else []), *(["--workdir", case.cwd] if case.cwd else [])]
        options += [*(["--interactive"] if case.input is not None else []), *(["--tty"] if case.terminal else [])]
        arguments = ["sh", "-c", step] if isinstance(step, str) else list(step)
        return _podman("exec", *options, self._name, *arguments, timeout_s=case.deadline_s, data=case.input or b"")

    def remove(self) -> None:
        """End everything in it. Safe to call on one that did not start."""
        _podman("rm", "--force", "--time=0", self._name, timeout_s=_START_S)


def _load(image: Image) -> str:
    with _loading:
        if image.name not in _loaded:
            done = _podman("pull", "--quiet", f"oci-archive:{image.archive}", timeout_s=_START_S)
            if done.exit_code != 0:
                raise RuntimeError(f"podman does not load {image.archive}: {done.stderr}")
            _loaded[image.name] = done.stdout.split()[-1]
        return _loaded[image.name]


def _podman(*arguments: str, timeout_s: float, data: bytes = b"") -> CommandResult:
    command: Sequence[str] = [*_PODMAN, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, timeout=timeout_s, input=data)
    except subprocess.TimeoutExpired:
        return CommandResult(None, "", "")
    except OSError as error:  # more arguments than the kernel passes to a program
        return CommandResult(126, "", str(error))
    return CommandResult(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))
