"""The session state machine, the same for both ends (PROTOCOL §3–§6): the module that others import.

It has no sockets, tasks or clocks: five verbs drive it (``receive``, ``events``, ``outgoing``, ``deadline``, ``tick``), ``now`` is any
monotonic clock in seconds, and events report what the caller has to do. ``session_base`` holds what both ends share;
``ClientSession`` and ``AgentSession`` add Hello and Welcome. The sockets belong to the SDK's transport and to the agent's connections;
the gateway does not use this module.
"""

from __future__ import annotations

from .agent_session import AgentSession, check_hello
from .client_session import ClientSession
from .session_base import Session

__all__ = ["AgentSession", "ClientSession", "Session", "check_hello"]
