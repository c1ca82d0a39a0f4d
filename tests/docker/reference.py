"""The reference: a container of runc with docker's default specification, on an overlay of the image's layers.

Owns the container's folder, mounts and cgroup, and what docker resolves itself before it calls runc: users by name, HOME, HOSTNAME,
/etc/hosts. Needs root. `compare.py` creates one for each case.
"""

from __future__ import annotations

import json
import os
import pty
import secrets
import shutil
import socket
import subprocess
import sys
import termios
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.docker import specification
from tests.docker.case import Case, Step
from tests.docker.image import FOLDER, Image
from tests.support.mirror import host

CPU = 2.0
MEMORY = 1 << 30
PIDS = 2048
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_INIT = "/sbin/docker-init"
_RUNC = ["runc", "--root", str(FOLDER / "runc")]
_DRAIN_S = 0.3


def why_no_network() -> str:
    """Why the cases that need the internet cannot run on this machine; empty where they can."""
    if shutil.which("slirp4netns") is None:
        return "slirp4netns is not installed"
    name, port = host()
    if not name:
        return "this machine's apt names no mirror"
    try:
        socket.create_connection((name, port), timeout=5).close()
    except OSError as error:
        return f"this machine does not reach {name}: {error}"
    return ""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of one command. `exit_code` is None if it was killed at its deadline."""

    exit_code: int | None
    stdout: str
    stderr: str


def remove_leftovers() -> None:
    """Remove what a killed run left behind. The caller holds the folder's lock."""
    for folder in sorted((FOLDER / "containers").glob("*")):
        _remove_container(folder)


def _remove_container(folder: Path) -> None:
    subprocess.run([*_RUNC, "delete", "--force", folder.name], capture_output=True)
    merged = folder / "merged"
    if merged.is_mount():
        subprocess.run(["umount", "-l", str(merged)], check=True)
    shutil.rmtree(folder, ignore_errors=True)


class Reference:
    """One container, from `start` to `remove`."""

    def __init__(self, image: Image, main: Image, case: Case) -> None:
        """*main* is the image with the files that the reference itself needs: an init and the kernel's headers."""
        self.id = secrets.token_hex(6)
        self._image = image
        self._main = main
        self._case = case
        self._folder = FOLDER / "containers" / self.id
        self._readers: list[threading.Thread] = []
        self._slirp: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """`docker run -d --init IMAGE`, with a command that does nothing unless the case requests the image's own."""
        for name in ("upper", "work", "merged"):
            (self._folder / name).mkdir(parents=True)
        lower = ":".join(str(layer) for layer in reversed(self._image.layers))
        options = f"lowerdir={lower},upperdir={self._folder / 'upper'},workdir={self._folder / 'work'}"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, str(self._folder / "merged")], check=True)
        self._add_init_layer()
        for name, text in {
            "hosts": "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\nfe00::\tip6-localnet\nff00::\tip6-mcastprefix\n"
            f"ff02::1\tip6-allnodes\nff02::2\tip6-allrouters\n127.0.0.1\t{self.id}\n",  # docker's bridge would give another address
            "hostname": f"{self.id}\n",
            "resolv.conf": "nameserver 10.0.2.3\n" if self._case.network else "",
        }.items():
            (self._folder / name).write_text(text)
        first = self._process([_INIT, "--", *self._main_command()], None, None, {}, terminal=False)
        files = {f"/etc/{name}": str(self._folder / name) for name in ("hosts", "hostname", "resolv.conf")}
        body = specification.container(
            root=str(self._folder / "merged"),
            hostname=self.id,
            first=first,
            files={**files, _INIT: str(self._main.layers[0] / "usr/bin/tini-static"), **self._volumes()},
            cgroup=f"/docker-suite/{self.id}",
            cpu=CPU,
            memory=MEMORY,
            pids=PIDS,
            headers=self._main.layers[0] / "usr/include/x86_64-linux-gnu/asm/unistd_64.h",
        )
        (self._folder / "config.json").write_text(json.dumps(body))
        log = self._folder / "runc.log"
        with log.open("wb") as output:
            ended = subprocess.run(
                [*_RUNC, "run", "--detach", "--bundle", str(self._folder), self.id],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        if ended.returncode != 0:
            raise RuntimeError(f"runc did not start the reference container: {log.read_text()}")
        if self._case.network:
            self._connect()

    def _main_command(self) -> list[str]:
        config = self._image.config
        if self._case.entrypoint:
            return [*config.get("Entrypoint", []), *config.get("Cmd", [])]
        return ["/busybox", "tail", "-f", "/dev/null"] if (self._folder / "merged/busybox").exists() else ["tail", "-f", "/dev/null"]

    def _volumes(self) -> dict[str, str]:
        """docker's anonymous volumes: separate directories that start with the image's contents."""
        made = {}
        for number, path in enumerate(self._image.config.get("Volumes", {})):
            inside, outside = self._folder / "merged" / path.lstrip("/"), self._folder / f"volume-{number}"
            inside.mkdir(parents=True, exist_ok=True)
            subprocess.run(["cp", "-a", str(inside), str(outside)], check=True)
            made[path] = str(outside)
        return made

    def _connect(self) -> None:
        """Connect the container through slirp4netns, like the sandbox; docker would use its bridge."""
        pid = json.loads(subprocess.run([*_RUNC, "state", self.id], capture_output=True, check=True).stdout)["pid"]
        reads, writes = os.pipe()
        command = ["slirp4netns", "--configure", "--mtu=65520", "--disable-host-loopback", f"--ready-fd={writes}", str(pid), "tap0"]
        self._slirp = subprocess.Popen(command, pass_fds=[writes], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(writes)
        ready = os.read(reads, 1)
        os.close(reads)
        if not ready:
            raise RuntimeError("slirp4netns did not connect the reference container")

    def _add_init_layer(self) -> None:
        """Add what docker puts between an image and a container: mount points, /etc/mtab, /.dockerenv."""
        merged = self._folder / "merged"
        for name in ("dev", "proc", "sys", "etc", "sbin", str(self._image.config.get("WorkingDir", "")).lstrip("/")):
            if not (merged / name).is_symlink():
                (merged / name).mkdir(parents=True, exist_ok=True)
        for name in (_INIT.lstrip("/"), ".dockerenv", "etc/hosts", "etc/hostname", "etc/resolv.conf"):
            (merged / name).touch()
        mtab = merged / "etc/mtab"
        if not mtab.is_symlink():
            mtab.symlink_to("/proc/mounts")

    def run(self, step: Step) -> CommandResult:
        """`docker exec`: returns when the command has ended, whatever still holds its output."""
        case = self._case
        arguments = ["sh", "-c", step] if isinstance(step, str) else list(step)
        try:
            described = self._process(arguments, case.user, case.cwd, case.env, terminal=case.terminal)
        except LookupError as error:
            return CommandResult(126, "", str(error))
        file = self._folder / f"process-{secrets.token_hex(4)}.json"
        file.write_text(json.dumps(described))
        if case.terminal:
            return self._run_on_terminal([*_RUNC, "exec", "--process", str(file), self.id])
        pid_file = str(file.with_suffix(".pid"))
        shim = [sys.executable, "-ISE", str(Path(__file__).with_name("shim.py")), pid_file]
        command = [*shim, *_RUNC, "exec", "--detach", "--pid-file", pid_file, "--process", str(file), self.id]
        running = subprocess.Popen(
            command, stdin=subprocess.DEVNULL if case.input is None else subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert running.stdout
        assert running.stderr
        outputs = [bytearray(), bytearray()]
        readers = [self._read(pipe.fileno(), into, pipe) for pipe, into in zip((running.stdout, running.stderr), outputs, strict=True)]
        if case.input is not None:
            assert running.stdin
            running.stdin.write(case.input)
            running.stdin.close()
        try:
            code: int | None = running.wait(self._case.deadline_s)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()
            code = None
        for reader in readers:
            reader.join(_DRAIN_S)
        stdout, stderr = (bytes(output).decode(errors="replace") for output in outputs)
        return CommandResult(_exit_code_of_docker(code, stderr), stdout, stderr)

    def _run_on_terminal(self, command: list[str]) -> CommandResult:
        controller, terminal = pty.openpty()
        termios.tcsetwinsize(terminal, (24, 80))
        running = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True)
        os.close(terminal)
        output = bytearray()
        reader = self._read(controller, output, None)
        try:
            code: int | None = running.wait(self._case.deadline_s)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()
            code = None
        reader.join(_DRAIN_S)
        return CommandResult(code, bytes(output).decode(errors="replace"), "")

    def _read(self, descriptor: int, into: bytearray, pipe: Any) -> threading.Thread:
        def read() -> None:
            try:
                while data := os.read(descriptor, 1 << 16):
                    into.extend(data)
            except OSError:
                pass  # the other end of a terminal is gone
            if pipe is None:
                os.close(descriptor)
            else:
                pipe.close()

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        self._readers.append(thread)
        return thread

    def remove(self) -> None:
        """End everything in it and unmount. Safe to call on one that did not start."""
        if self._slirp is not None:
            self._slirp.kill()
            self._slirp.wait()
        _remove_container(self._folder)
        for reader in self._readers:
            reader.join(5)

    def _process(
        self, arguments: list[str], user: str | None, cwd: str | None, env: Mapping[str, str], *, terminal: bool
    ) -> dict[str, Any]:
        config = self._image.config
        uid, gid, groups, home = self._identity(user or str(config.get("User") or ""))
        known = {"PATH": _PATH, "HOSTNAME": self.id, **({"TERM": "xterm"} if terminal else {})}
        known |= dict(entry.split("=", 1) for entry in config.get("Env") or [])
        known |= env
        known.setdefault("HOME", home)
        where = cwd or str(config.get("WorkingDir") or "/")
        environment = [f"{name}={value}" for name, value in known.items()]
        described = specification.process(arguments, uid, gid, groups, where, environment, terminal=terminal)
        described["rlimits"] = [
            *(limit for limit in described["rlimits"] if limit["type"].removeprefix("RLIMIT_").lower() not in self._case.ulimits),
            *({"type": f"RLIMIT_{name.upper()}", "soft": soft, "hard": hard} for name, (soft, hard) in self._case.ulimits.items()),
        ]
        return described

    def _identity(self, user: str) -> tuple[int, int, list[int], str]:
        """The uid, gid, supplementary groups and home of docker's `--user`, read from the container's files."""
        name, colon, group = user.partition(":")
        users = self._table("passwd", 7)
        groups = self._table("group", 4)
        entry = next((row for row in users if (name or "0") == row[2 if name.isdigit() or not name else 0]), None)
        if entry is None and name and not name.isdigit():
            raise LookupError(f"unable to find user {name}: no matching entries in passwd file")
        uid = int(entry[2]) if entry else int(name or 0)
        gid = int(entry[3]) if entry else 0
        home = entry[5] if entry else "/"
        if colon:
            row = next((row for row in groups if group == row[2 if group.isdigit() else 0]), None)
            if row is None and not group.isdigit():
                raise LookupError(f"unable to find group {group}: no matching entries in group file")
            gid = int(row[2]) if row else int(group)
            return uid, gid, [gid], home
        others = [int(row[2]) for row in groups if entry and entry[0] in row[3].split(",")]
        return uid, gid, [gid, *others], home  # the first group among the others too, since CVE-2022-36109

    def _table(self, name: str, fields: int) -> list[list[str]]:
        try:
            text = (self._folder / "merged/etc" / name).read_text()
        except OSError:
            return []
        return [row for line in text.splitlines() if len(row := line.split(":")) == fields]


def _exit_code_of_docker(code: int | None, stderr: str) -> int | None:
    """docker answers 127 for a program that does not exist and 126 for one that cannot be run, where runc has one code for both."""
    if "exec failed" not in stderr or code not in (1, 255):
        return code
    return 127 if "not found" in stderr or "no such file" in stderr else 126
