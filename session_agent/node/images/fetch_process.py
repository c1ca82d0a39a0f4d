"""``python -m session_agent.node.images.fetch_process``: gives up all rights, then becomes the program that fetches an image.

Owns what that program keeps: one directory to write into, and a network namespace of its own in which only the listening sockets of the
node's proxy answer. As root it runs with the ids of no user; otherwise with the node's own ids in a user namespace. Started by ``pull``,
which passes the settings in the first argument and is sent the listening sockets over the inherited descriptor ``channel``.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import sys

from session_agent.node.kernel import namespaces
from session_agent.node.kernel import syscalls as sys_

_POINTS = ("/mnt", "/media", "/srv", "/tmp")
"""Where the directory is mounted: its own parents are closed to the program."""


def main(argument: str) -> None:
    """Does not return. Raises OSError."""
    settings = json.loads(argument)
    uid, gid = os.geteuid(), os.getegid()
    sys_.unshare(sys_.CLONE_NEWNS | sys_.CLONE_NEWNET | (0 if uid == 0 else sys_.CLONE_NEWUSER))
    if uid != 0:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            sys_.write_file(f"/proc/self/{name}", text)
    namespaces.set_up_loopback()
    # Programs in Go use no proxy for localhost: a registry there that the operator has named is forwarded at its own port.
    listeners = [socket.create_server(("127.0.0.1", number), backlog=64) for number in (0, settings["forward"]) if number is not None]
    port = listeners[0].getsockname()[1]
    with socket.socket(fileno=settings["channel"]) as channel:
        socket.send_fds(channel, [b"x"], [listener.fileno() for listener in listeners])
    for listener in listeners:
        listener.close()
    point = next(path for path in _POINTS if os.path.isdir(path))
    sys_.mount("none", "/", "", sys_.MS_REC | sys_.MS_PRIVATE)
    sys_.mount(settings["directory"], point, "", sys_.MS_BIND)
    os.chdir(point)
    if uid == 0:
        os.setgroups([])
        os.setresgid(settings["id"], settings["id"], settings["id"])
        os.setresuid(settings["id"], settings["id"], settings["id"])
    sys_.prctl(sys_.PR_SET_NO_NEW_PRIVS, 1)
    sys_.prctl(sys_.PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (settings["size_bytes"], settings["size_bytes"]))
    sys_.close_range(3)
    proxy = f"http://127.0.0.1:{port}"
    environment = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "HOME": point, "TMPDIR": point, "XDG_RUNTIME_DIR": point}
    environment |= {"HTTPS_PROXY": proxy, "HTTP_PROXY": proxy}
    if os.path.exists("auth.json"):
        environment["REGISTRY_AUTH_FILE"] = f"{point}/auth.json"
    command = [word.replace("{}", point) for word in settings["command"]]
    os.execvpe(command[0], command, environment)


if __name__ == "__main__":
    main(sys.argv[1])
