"""Runs one detached `runc exec` and exits as its process does: what containerd's shim does for docker.

Started as a program by `reference.py`: SHIM PID_FILE COMMAND… `runc exec` in the foreground would wait for everything that holds the
output; docker does not. The shim adopts the process (subreaper), so that it alone learns its exit status. Uses nothing of the project.
"""

import ctypes
import os
import sys

_PR_SET_CHILD_SUBREAPER = 36


def main(pid_file: str, command: list[str]) -> int:
    """Returns what a shell would show for the process, and runc's own status where nothing was started."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    runc = os.posix_spawnp(command[0], command, os.environ)
    status = os.waitpid(runc, 0)[1]
    if status != 0:
        return os.waitstatus_to_exitcode(status) & 0xFF
    with open(pid_file, encoding="ascii") as file:
        pid = int(file.read())
    while True:
        reaped, status = os.wait()
        if reaped == pid:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
