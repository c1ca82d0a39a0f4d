"""A TCP socket in the network namespace of a sandbox, for a connection that no process of the sandbox has to carry.

Owns entering the namespace and leaving it again. A socket belongs to the namespace it was created in, whoever uses it afterwards. Called by
the zygote, which has one thread and is root above all sandboxes' namespaces, also where the node is not.
"""

from __future__ import annotations

import os
import socket

from session_agent.node.kernel import syscalls as sys_

_LOST = 73
"""Exit status if the process cannot leave the sandbox's namespace; the node then starts another zygote."""


def make_socket(network: int, own: int, family: int) -> socket.socket:
    """A TCP socket in the network namespace *network*; *own* is the caller's, to which it returns. Raises OSError."""
    sys_.setns(network, sys_.CLONE_NEWNET)
    try:
        return socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    finally:
        try:
            sys_.setns(own, sys_.CLONE_NEWNET)
        except OSError:
            os._exit(_LOST)
