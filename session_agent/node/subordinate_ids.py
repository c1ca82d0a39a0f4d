"""For a node without root: a user namespace with the ids that /etc/subuid and /etc/subgid give to the node's user.

Rootless podman and docker use the same programs (newuidmap, newgidmap of the package uidmap). In that namespace the node is root, and the
sandboxes share its ids: root there is the node's user, the others are subordinate ids. Owns finding the ranges and entering the namespace,
which has to happen before any module looks at the user's id and before there are threads. Where that is not possible the node goes on
without it, with one id for all sandboxes, and `problem` has the reason. Called by ``__main__``; decision 0075.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import shutil
import subprocess

_CLONE_NEWUSER = 0x10000000
_LEAST = 1000
_MOST = 65535
_PROGRAMS = (("newuidmap", "/etc/subuid"), ("newgidmap", "/etc/subgid"))
_PACKAGE = "install the package uidmap"
SWITCH = "HOLDFAST_NODE_SUBIDS"


class UnavailableError(Exception):
    """There are no subordinate ids; ``fix`` says how to get them."""

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.fix = fix


problem: UnavailableError | None = None
"""Why the namespace was not entered; None if it was, or if it is not needed."""


def enter() -> None:
    """Enter the namespace if this process is not root and has subordinate ids. Needs a process with a single thread."""
    global problem
    if os.geteuid() == 0:
        return
    try:
        commands = _commands()
        _try(commands)
        _enter(commands)
    except UnavailableError as error:
        problem = error


def _commands() -> list[list[str]]:
    """The command line of each program without the process id. Raises UnavailableError."""
    if os.environ.get(SWITCH) == "off":
        raise UnavailableError(f"{SWITCH} is off", f"unset {SWITCH}")
    found = []
    for (program, path), own in zip(_PROGRAMS, (os.geteuid(), os.getegid()), strict=True):
        place = shutil.which(program)
        if place is None:
            raise UnavailableError(f"{program} is not installed", _PACKAGE)
        start, count = _range(path)
        found.append([place, "0", str(own), "1", "1", str(start), str(count)])
    return found


def _range(path: str) -> tuple[int, int]:
    """The largest range of this user in the file: first id and number of ids. Raises UnavailableError."""
    uid = os.geteuid()
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        raise UnavailableError(f"user {uid} has no entry in /etc/passwd") from None
    found = (0, 0)
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                fields = line.strip().split(":")
                if len(fields) == 3 and fields[0] in (name, str(uid)) and fields[1].isdecimal() and fields[2].isdecimal():
                    found = max(found, (int(fields[1]), int(fields[2])), key=lambda one: one[1])
    except OSError:
        pass
    if found[1] < _LEAST:
        fix = f"as root: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {name}, with ids that no other user has"
        raise UnavailableError(f"{path} gives no ids to {name}", fix)
    return found[0], min(found[1], _MOST)


def _try(commands: list[list[str]]) -> None:
    """Make such a namespace in a child: a process that has entered one without ids cannot leave it again. Raises UnavailableError."""
    ready, ready_w = os.pipe()
    go, go_w = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(go_w)
        os.write(ready_w, b"1" if _unshare() else b"0")
        os.read(go, 1)
        os._exit(0)
    os.close(ready_w)
    os.close(go)
    try:
        if os.read(ready, 1) != b"1":
            raise UnavailableError("this machine permits no user namespaces to users")
        text = _map(commands, pid)
        if text:
            raise UnavailableError(text, "run `holdfast doctor`, or podman unshare, to see what the machine refuses")
    finally:
        os.close(go_w)
        os.close(ready)
        os.waitpid(pid, 0)


def _enter(commands: list[list[str]]) -> None:
    """Enter the namespace; a child that stays outside maps its ids. Raises UnavailableError."""
    go, go_w = os.pipe()
    done, done_w = os.pipe()
    own = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.close(go_w)
        os.read(go, 1)
        os.write(done_w, _map(commands, own).encode()[:4000])
        os._exit(0)
    os.close(go)
    os.close(done_w)
    entered = _unshare()
    os.close(go_w)
    text = os.read(done, 4096).decode(errors="replace")
    os.close(done)
    os.waitpid(pid, 0)
    if not entered or text:
        raise UnavailableError(text or "this machine permits no user namespaces to users")


def _map(commands: list[list[str]], pid: int) -> str:
    """Why the ids could not be mapped; empty if they were."""
    for program, *ids in commands:
        try:
            done = subprocess.run([program, str(pid), *ids], capture_output=True, timeout=30, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        if done.returncode != 0:
            return done.stderr.decode(errors="replace").strip()[:500] or f"{program} ended with {done.returncode}"
    return ""


def _unshare() -> bool:
    return bool(ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWUSER) == 0)
