"""A tiny agent for the tests of the node: answers one JSON request per connection, one at a time.

It runs in the place of the real agent (first process, same capabilities), so it can do exactly what the real agent can do.
Only the zygote of a test's node imports it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from typing import Any

from session_agent.agent.process.privileges import dropped_capabilities
from session_agent.node.kernel import syscalls


def serve(config: dict[str, Any], listen_fd: int, ready_fd: int) -> None:
    if config["env"].get("TEST_AGENT") == "breaks":
        raise RuntimeError("deliberate failure")
    if config["env"].get("TEST_AGENT") == "silent":
        os._exit(3)
    listener = socket.socket(fileno=listen_fd)
    os.write(ready_fd, b'{"ready": true}\n')
    os.close(ready_fd)
    while True:
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as file:
            line = file.readline()
            if line:
                connection.sendall(json.dumps(_answer(config, json.loads(line))).encode())


def _answer(config: dict[str, Any], request: dict[str, Any]) -> Any:
    operation = request["op"]
    if operation == "run":
        return _run(config, request)
    if operation == "python":
        names: dict[str, Any] = {}
        exec(request["script"], names)
        return names.get("result")
    if operation == "config":
        return config
    if operation == "read":
        with open(request["path"], encoding="utf-8", errors="replace") as file:
            return file.read()
    if operation == "write":
        with open(request["path"], "w", encoding="utf-8") as file:
            return file.write(request["text"])
    if operation == "list":
        return sorted(os.listdir(request["path"]))
    if operation == "stat":
        status = os.lstat(request["path"])
        return {"mode": status.st_mode, "uid": status.st_uid, "gid": status.st_gid, "nlink": status.st_nlink}
    if operation == "fds":
        return {name: os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if _live(name)}
    if operation == "eat":
        blocks = [b"\1" * (1 << 20) for _ in range(request["mebibytes"])]
        return len(blocks)
    if operation == "grep":
        return _grep([bytes.fromhex(word) for word in request["words"]])
    if operation == "exit":
        os._exit(request["status"])
    return f"no operation {operation}"


def _live(name: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{name}")


def _grep(words: list[bytes]) -> list[int]:
    """How often each word, given with its bytes inverted, is found in this process's own writable memory."""
    wanted = [bytes(byte ^ 0xFF for byte in word) for word in words]
    counts = [0] * len(words)
    with open("/proc/self/maps", encoding="ascii", errors="replace") as maps, open("/proc/self/mem", "rb") as memory:
        for row in maps:
            span, permissions = row.split()[:2]
            if not permissions.startswith("rw"):
                continue
            low, high = (int(part, 16) for part in span.split("-"))
            try:
                memory.seek(low)
                data = memory.read(high - low)
            except OSError:
                continue
            for index, word in enumerate(wanted):
                counts[index] += data.count(word)
    return counts


def _run(config: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    def join() -> None:
        for fd in config.get("cgroup_join_fds", ()):
            os.write(fd, b"0")
        _become_command(config)

    done = subprocess.run(
        request["argv"],
        input=request.get("input", "").encode(),
        capture_output=True,
        env=config["env"],
        cwd=config["workdir"] or ("/workspace" if os.path.isdir("/workspace") else "/"),
        preexec_fn=join,
        check=False,
    )
    out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    return {"code": done.returncode, "out": out, "err": err}


def _become_command(config: dict[str, Any]) -> None:
    """What the real agent's children do (``session_agent.agent.process.privileges``), as root of the commands' user namespace."""
    syscalls.setns(config["command_namespace_fd"], syscalls.CLONE_NEWUSER)
    if config["command_ids"] > 1:
        os.setgroups([0])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    for capability in dropped_capabilities():
        syscalls.prctl(syscalls.PR_CAPBSET_DROP, capability)


if __name__ == "__main__":
    sys.exit("this runs inside a sandbox")
