"""The namespaces that commands do not share with the agent: users, network and control groups.

Their user namespace lies below the agent's and lacks the agent's own id. The network namespace belongs to it, so that root inside may use
raw sockets and low ports; the control group namespace begins at the commands' own groups, so that programs find their limits. A child that
consists only of system calls (``stub``) moves itself into the groups, creates all three namespaces and waits until they are opened. Called
by the zygote's child while it still has every capability over its sandbox.
"""

from __future__ import annotations

import errno
import functools
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from session_agent.agent.process.stub import Call, Report, assemble
from session_agent.node.kernel import syscalls as sys_
from session_agent.node.kernel.namespaces import IdMap, write_id_maps

_MADE = b"1"
_MFD_EXEC = 0x10
_REPORT_FD = 200
"""The descriptors of the program: its report, followed by the files of the groups."""


@dataclass(frozen=True, slots=True)
class Namespaces:
    """Open descriptors of the commands' namespaces."""

    user: int
    network: int
    groups: int


@functools.cache
def program(groups: int) -> int:
    """An open file with the program for that number of groups.

    The zygote calls this before it forks, so that all its children inherit it.
    """
    try:
        made = os.memfd_create("workload", os.MFD_CLOEXEC | _MFD_EXEC)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        made = os.memfd_create("workload", os.MFD_CLOEXEC)  # before Linux 6.3
    try:
        os.write(made, assemble(_calls(groups), _REPORT_FD))
        return os.open(f"/proc/self/fd/{made}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(made)


def _calls(groups: int) -> list[Call]:
    return [
        *(Call("write", (_REPORT_FD + 1 + index, b"0", 1)) for index in range(groups)),
        Call("unshare", (sys_.CLONE_NEWUSER | sys_.CLONE_NEWNET | sys_.CLONE_NEWCGROUP,)),
        Call("write", (_REPORT_FD, _MADE, 1)),
        Call("ppoll", (0, 0, 0, 0)),
    ]


def make(ids: IdMap, group_fds: Sequence[int], proc: str) -> Namespaces:
    """Create the namespaces.

    *group_fds* are open ``cgroup.procs`` files of the commands' groups, *proc* is where /proc is mounted. Raises OSError with the failed
    step.
    """
    report, report_w = os.pipe2(os.O_CLOEXEC)
    pid = 0
    try:
        given = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate((report_w, *group_fds), _REPORT_FD)]
        path = f"/proc/self/fd/{program(len(group_fds))}"
        pid = os.posix_spawn(path, ["holdfast-namespaces"], {}, file_actions=given)
        os.close(report_w)
        report_w = -1
        answer = os.read(report, 64)
        if answer != _MADE:
            raise _failure(_calls(len(group_fds)), answer)
        write_id_maps(pid, ids.command_extents, proc=proc)
        opened = [os.open(f"{proc}/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in ("user", "net", "cgroup")]
        return Namespaces(*opened)
    finally:
        os.close(report)
        if report_w >= 0:
            os.close(report_w)
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _failure(calls: Sequence[Call], answer: bytes) -> OSError:
    report = Report(calls)
    report.feed(answer)
    name = report.failed.name if report.failed else "exec"
    number = report.errno or errno.EIO
    return OSError(number, f"{name}: {os.strerror(number)}")
