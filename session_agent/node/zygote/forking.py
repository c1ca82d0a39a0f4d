"""The process that agents are forked from: it has imported the agent's modules and nothing else.

Owns forking and the first steps of a new sandbox. It has one thread, and is a new program rather than a fork of the node, so that
no secret of the node is in its memory: tokens and environments go from the node directly to the child over a separate channel.
Children are made children of the node (CLONE_PARENT), so a zygote that dies takes no sandbox with it.
Started by ``__main__``.
"""

from __future__ import annotations

import errno
import gc
import importlib
import importlib.util
import json
import marshal
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from session_agent.agent.process.privileges import last_capability
from session_agent.node.images.skeleton import hosts_file
from session_agent.node.kernel import namespace_sockets, namespaces, network, rootfs, seccomp, syscalls, workload
from session_agent.node.kernel.namespaces import IdMap
from session_agent.node.kernel.rootfs import DetachedMounts, Root
from session_agent.node.zygote import immortal

MAX_MESSAGE = 1 << 17
PREPARED = b"1"
"""The byte that the child sends to the node once its namespaces exist."""
_WARM_UPS = 16
"""After this many rounds CPython has specialized the code of these steps (measured: nine in 3.11, two in 3.12, sixteen in 3.13)."""
_FDS = ("control", "ready", "stderr", "disk")
"""The descriptors of a request; those of layers follow."""
_CLOSED_ON_EXEC = int(socket.MSG_CMSG_CLOEXEC)
_WHOLE = int(socket.MSG_CMSG_CLOEXEC | socket.MSG_WAITALL)
_CODECS = ("encodings.ascii", "encodings.idna", "encodings.latin_1", "encodings.utf_8", "stringprep")
_LIBRARY = (
    "asyncio",
    "concurrent.futures.thread",
    "grp",
    "hashlib",
    "hmac",
    "json",
    "logging",
    "pwd",
    "secrets",
    "selectors",
    "shutil",
    "tempfile",
    "traceback",
)
Entry = Callable[[dict[str, Any], int, int], object]


class Zygote:
    """Answers the node's requests, one at a time, over a sequenced-packet socket."""

    def __init__(self, control: socket.socket, entry: Entry, warm_up: Callable[[], object], directory: str, mode: str) -> None:
        """*directory* is any directory that only the node uses. Afterwards no path leads to the machine's files or modules any more."""
        if mode == "own":
            namespaces.enter_own_user_namespace()
        else:
            namespaces.keep_capabilities_across_uids()
            namespaces.raise_limits()
            syscalls.unshare(syscalls.CLONE_NEWNS)
        # An empty network: this process needs none, and without root it could not return to the machine's from a sandbox's.
        syscalls.unshare(syscalls.CLONE_NEWNET)
        # Later mounts of the machine (such as a data disk) are propagated to this namespace, but none of its mounts to the machine.
        syscalls.mount("", "/", "", syscalls.MS_REC | syscalls.MS_SLAVE)
        self._makes_devices = mode == "init"
        self._control = control
        self._entry = entry
        self._warm_up = warm_up
        """Goes through what every agent does first, so that a spare has its own copy of the memory this writes to."""
        self._filters = [seccomp.build(network=network, one_id=mode == "own") if seccomp.supported() else None for network in (False, True)]
        self._last_capability = last_capability()
        self._tid_address = syscalls.thread_id_address()
        self._null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        self._own_network = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self._warm_shared_code()
        self.mounts = rootfs.ZygoteMounts(directory)

    def serve(self) -> None:
        """Serve requests until the node closes its end of the socket."""
        while True:
            raw, fds, _, _ = socket.recv_fds(self._control, MAX_MESSAGE, len(_FDS) + rootfs.MAX_LAYERS, _CLOSED_ON_EXEC)
            if not raw:
                return
            try:
                request = marshal.loads(raw)  # noqa: S302  the node wrote it
                if "socket" in request:
                    answer, fd = b"{}", namespace_sockets.make_socket(fds[0], self._own_network, request["socket"]).detach()
                else:
                    pid, fd = self._spawn(request, dict(zip(_FDS, fds, strict=False)), fds[len(_FDS) :])
                    answer = b'{"pid": %d}' % pid
            except OSError as error:
                self._control.sendmsg([json.dumps({"error": str(error), "errno": error.errno}).encode()])
            else:
                socket.send_fds(self._control, [answer], [fd])
                os.close(fd)
            finally:
                for fd in fds:
                    os.close(fd)

    def _spawn(self, request: dict[str, Any], fds: dict[str, int], layers: list[int]) -> tuple[int, int]:
        """Fork a child; returns its pid and pidfd. *layers*: those that are mounts."""
        ids = IdMap(*request["ids"])
        root = Root(*request["root"])
        workload.program(request["groups"])
        mapped_r, mapped_w = os.pipe2(os.O_CLOEXEC)
        opened = DetachedMounts((), ())
        try:
            with self.mounts.outside():
                opened = rootfs.open_layers(root, fds.get("disk"), ids.base if self._makes_devices else None, layers)
            with namespaces.owned_by(ids):
                pid, pidfd = syscalls.fork_into(namespaces.ISOLATION | syscalls.CLONE_PARENT, self._tid_address)
                if pid == 0:
                    os.close(mapped_w)
                    self._child(request, root, opened, ids, mapped_r, fds)
            try:
                namespaces.write_id_maps(pid, ids.extents)
                if request["idmap"]:
                    rootfs.map_owners(opened, pid, disk=request["idmap_disk"])
                os.write(mapped_w, b"1")
            except OSError as error:
                # It is the node's child, so the node notices its end as for any other child, and reaps it.
                _report(fds["ready"], "id maps", error)
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            return pid, pidfd
        finally:
            os.close(mapped_r)
            os.close(mapped_w)
            opened.close()

    def _warm_shared_code(self) -> None:
        """Run the first steps of an agent until the interpreter has optimized their code: in memory that all agents share, and once."""
        try:
            for _ in range(_WARM_UPS):
                self._warm_up()
        except Exception:  # noqa: BLE001 - a slow machine: agents start a little slower, and do start
            traceback.print_exc()
        finally:
            syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 0)

    def _child(self, request: dict[str, Any], root: Root, opened: DetachedMounts, ids: IdMap, mapped: int, fds: dict[str, int]) -> NoReturn:
        step = "ids"
        try:
            if os.read(mapped, 1) != b"1":
                os._exit(70)
            namespaces.become_root_inside(ids)
            if not self._makes_devices:  # these sandboxes share their ids
                namespaces.bound_counts()
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            step = "file tree"
            rootfs.build(root, opened, self.mounts, ids)
            step = "control groups"
            control = socket.socket(fileno=fds["control"])
            groups = _receive(control)
            step = "namespaces of commands"
            namespaces.become_agent(ids)
            commands = workload.make(ids, groups.get("cgroup_join_fds", ()), "proc")
            for fd in (commands.network, commands.groups):
                syscalls.setns(fd)
            step = "network"
            namespaces.set_up_network(ids)
            step = "system files"
            rootfs.mount_sys(self.mounts, dict(zip(groups.pop("mounts", ()), groups.pop("mount_fds", ()), strict=True)))
            rootfs.enter()
            control.sendall(PREPARED)
            step = "descriptors"
            for target in (0, 1):
                os.dup2(self._null, target)
            os.dup2(fds["stderr"], 2)
            kept = {fd for opened_fds in groups.values() for fd in opened_fds}
            namespaces.close_all_but({0, 1, 2, fds["control"], fds["ready"], commands.user, *kept})
            namespaces.limit_resources(int(request["open_files"]))
            os.umask(0o022)
            os.setsid()
            namespaces.clear_bounding_set(self._last_capability)
            if request["warm_up"]:
                step = "warm-up"
                self._warm_up()
            step = "configuration"
            with control:
                config = _receive(control) | groups
            config |= {"command_namespace_fd": commands.user, "command_ids": ids.commands}
            syscalls.set_title("holdfast-agent")
            (listen,) = config.pop("listen_fds")
            tasks = config.pop("pids", None)
            if tasks is not None:
                namespaces.limit_tasks(int(tasks))
            shm_bytes = config.pop("shm_bytes", None)
            if shm_bytes is not None:
                rootfs.resize_shm(int(shm_bytes))
            step = "name"
            _take_name(config["sandbox_id"])
            asked = config.pop("network", None)
            if asked:
                step = "network"
                _use_network(asked)
            step = "capabilities"
            namespaces.drop_own_capabilities(self._filters[bool(asked)])
            step = "agent"
            gc.enable()
            self._entry(config, listen, fds["ready"])
            os._exit(0)
        except SystemExit as leaving:
            os._exit(leaving.code if isinstance(leaving.code, int) else 0)
        except BaseException as error:  # noqa: BLE001 - the node must report the reason
            _report(fds["ready"], step, error)
            os._exit(71)


def load_warm_up(name: str) -> Callable[[], object]:
    """The function that spares call while they wait: ``warm_up`` in the module ``warmup`` beside the entry point's module."""
    module = f"{name.partition(':')[0].rpartition('.')[0]}.warmup"
    if importlib.util.find_spec(module) is None:
        return lambda: None
    warm_up: Callable[[], object] = importlib.import_module(module).warm_up
    return warm_up


def _take_name(name: str) -> None:
    """Give the sandbox its name. The files were created together with its folder, so writing to them copies nothing in the overlay."""
    syscalls.sethostname(name)
    for path, text in (("/etc/hostname", f"{name}\n"), ("/etc/hosts", hosts_file(name))):
        fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        os.write(fd, text.encode())
        os.close(fd)


def _use_network(asked: dict[str, Any]) -> None:
    network.close_off(asked["out_of_reach"])
    fd = os.open("/etc/resolv.conf", os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC)
    os.write(fd, f"nameserver {asked['resolver']}\n".encode())
    os.close(fd)


def _receive(channel: socket.socket) -> dict[str, Any]:
    """Receive one of the node's two messages to the child: its length, its text, and the descriptors in it.

    A spare waits for the second.
    """
    try:
        head, passed, _, _ = socket.recv_fds(channel, 4, 64, _WHOLE)
        length = int.from_bytes(head, "big")
        body = channel.recv(length, socket.MSG_WAITALL) if len(head) == 4 else b""
    except ConnectionResetError:  # the node ended before it read what this process had sent
        os._exit(72)
    if not body or len(body) != length:
        os._exit(72)
    message: dict[str, Any] = marshal.loads(body)  # noqa: S302  the node wrote it, and reading JSON copies more shared memory
    for name, fd in zip(message.pop("fds"), passed, strict=True):
        message.setdefault(name, []).append(fd)
    return message


def _report(ready: int, step: str, error: BaseException) -> None:
    traceback.print_exc()
    text = {"error": f"{step}: {error}", "errno": getattr(error, "errno", None)}
    try:
        os.write(ready, json.dumps(text).encode() + b"\n")
    except OSError:
        pass


def load_entry(name: str) -> Entry:
    """The agent's entry point, ``module:function``."""
    module, _, function = name.partition(":")
    entry: Entry = getattr(importlib.import_module(module), function)
    return entry


def _preload() -> None:
    """Import the modules that a running agent would otherwise import at their first use, from the sandbox's files."""
    for name in _CODECS + _LIBRARY:
        importlib.import_module(name)


def main(argv: list[str]) -> int:
    control = socket.socket(fileno=int(argv[1]))
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
    syscalls.set_title("holdfast-zygote")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    namespaces.choose_oom_score()
    try:
        _preload()
        entry = load_entry(argv[2])
        zygote = Zygote(control, entry, load_warm_up(argv[2]), argv[4], argv[3])
    except Exception as error:  # noqa: BLE001 - the node must report the reason
        traceback.print_exc()
        control.sendmsg([json.dumps({"error": str(error), "errno": getattr(error, "errno", None)}).encode()])
        return 1
    id_mapping = argv[3] == "init" and rootfs.id_mapping_works(argv[4], zygote.mounts)
    control.sendmsg([json.dumps({"ready": True, "id_mapping": id_mapping}).encode()])
    # Modules that are not imported by now would be loaded from the sandbox's own files. Cleared here and not in each fork, which
    # would write to shared memory.
    sys.path.clear()
    sys.path_importer_cache.clear()
    gc.collect()
    immortal.make_all_immortal()
    gc.freeze()
    gc.disable()
    try:
        zygote.serve()
    except OSError as error:
        if error.errno not in (errno.ECONNRESET, errno.EPIPE):
            raise
    return 0
