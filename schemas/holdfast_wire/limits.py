"""The limits of the protocol, with their units.

Owns the limits both ends enforce on each other (PROTOCOL §8). The connection of a peer that exceeds
one fails with ``protocol_error``; a caller that would exceed one gets a typed error before anything is sent.
"""

from __future__ import annotations

from .fast_dataclass import dataclass

KIB = 1024
MIB = 1024 * KIB

MESSAGE_BYTES = 256 * KIB
"""Largest WebSocket message, bytes (PROTOCOL §2.1)."""

DATA_BYTES = 128 * KIB
"""Largest payload of one Output or Write, bytes; bulk data is cut into pieces of this size."""

WINDOW_BYTES = 1 * MIB
"""Credit each side starts with on each direction of a channel, bytes (PROTOCOL §5.1)."""

UNACKED_SESSION_BYTES = 256 * KIB
"""Unacknowledged bytes that each session of an agent may always have, whatever its other sessions use."""

UNACKED_SANDBOX_BYTES = 64 * MIB
"""Limit of unacknowledged bytes of all sessions of an agent beyond that: the unread windows of a thousand channels would use up its
memory."""

UNACKED_MEMORY_SHARE = 8
"""In a sandbox with less memory the limit is its memory divided by this."""

ITEM_BYTES = 256
"""Memory that an unacknowledged item takes besides its message."""

CONTROL_SLACK = 4096
"""How far items without bytes may be ahead of the credit, so that a signal can be sent while a write waits (PROTOCOL §5.3)."""

CHANNELS = 1024
"""Most channels that may be open on one session."""

FIRST_ACCEPTED = 2**31
"""The lowest number of a channel that an agent opens; those of clients are lower (PROTOCOL §7.10)."""

LISTENERS = 16
"""Most channels of kind ``listen`` on one session."""

ACCEPTED_CHANNELS = 1024
"""Most channels that an agent may have opened on one session."""

UNTAKEN = 64
"""Most connections of one listener that the client's application has not taken yet."""

ACCEPTED_WINDOW_BYTES = 64 * KIB
"""Credit for the bytes of a connection that the client's application has not taken yet."""

RUN_QUEUE = 1024
"""Most commands that may wait in one shell."""

SESSIONS = 256
"""Most sessions (attached and detached) one agent keeps."""

DECODE_ITEMS = 16 * KIB
"""Most elements in one decoded array or map; nesting is bounded by ``DECODE_DEPTH``."""

DECODE_CONTAINERS = 4096
"""Most arrays and maps in one message: 1 MiB of empty maps would otherwise grow 74-fold in memory."""

DECODE_DEPTH = 8
"""Deepest nesting of a decoded message."""

PARAMS_BYTES = 4 * MIB
"""Most bytes of parameters that follow their Open (PROTOCOL §7.8): twice what the kernel takes as arguments and environment."""

PARAMS_ITEMS = 128 * KIB
"""Most elements in one array or map of such parameters."""

PARAMS_CONTAINERS = 64
"""Most arrays and maps in such parameters."""

PARAMS_SANDBOX_BYTES = 16 * MIB
"""Most bytes of such parameters that an agent collects at the same time."""

ENTRYPOINT_ID = "entrypoint"
"""The command id of the entrypoint, which a sandbox starts by itself."""
ID_BYTES = 128
"""Longest session, command, shell or terminal name, bytes."""

PATH_BYTES = 4096
"""Longest path, bytes (PATH_MAX of Linux)."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The clocks of a session, in seconds. Both ends use the same values unless a test shrinks them."""

    ping_interval_s: float = 5.0
    """Interval of pings on a silent connection."""
    silence_limit_s: float = 20.0
    """Silence after which the connection counts as dead, provided our own loop ran in time (PROTOCOL §6.2)."""
    ack_delay_s: float = 0.25
    """Longest time a received item stays unacknowledged."""
    ack_bytes: int = 64 * KIB
    """Received bytes after which an Ack goes out at once."""
    detached_ttl_s: float = 15 * 60
    """How long an agent keeps a detached session."""
    detached_least_s: float = 2 * 60
    """How long an agent keeps a detached session even if its table is full: a client tries to resume for this long (PROTOCOL §3.10)."""
    record_ttl_s: float = 5 * 60
    """How long an acknowledged exit record can still be requested."""
    record_max_age_s: float = 24 * 3600
    """How long an unacknowledged exit record is kept."""


RECORDS = 10_000
"""Most exit records one agent keeps; the oldest acknowledged go first."""

SPOOL_COMMAND_BYTES = 64 * MIB
"""Most unread output of one command that is kept."""

SPOOL_SANDBOX_BYTES = 256 * MIB
"""Most output all commands of one sandbox may hold back together."""

HISTORY_COMMANDS = 1000
"""Most commands in the history of a sandbox."""
HISTORY_BYTES = 512 * KIB
"""Most memory that the history takes."""
HISTORY_LINE_CHARACTERS = 200
"""So much of a command's first line is in the history."""
JOURNAL_BYTES = 4 * MIB
"""Most memory of what a gateway that follows a sandbox has not read yet, or could read again."""
JOURNAL_MEMORY_SHARE = 32
"""In a sandbox with less memory the limit is its memory divided by this."""
JOURNAL_COMMAND_BYTES = 1 * MIB
"""So much of one command's output and input is recorded; of the rest only the size."""
JOURNAL_TEXT_BYTES = 64 * KIB
"""So much of a command itself is recorded."""
JOURNAL_LINGER_S = 120.0
"""How long what happens is still collected after the last gateway has left."""
KEPT_COMMAND_BYTES = 128 * KIB
"""Output up to this size stays with a record whose exit was delivered, because an answer may be lost later on its way and be requested
again."""

KEPT_SANDBOX_BYTES = 1 * MIB
"""Most such output of one sandbox; the oldest is removed first."""

SPOOL_MEMORY_SHARE = 4
"""In a sandbox with less memory the limit is its memory divided by this, so that unread output leaves memory for the commands (PROTOCOL
§8)."""

SPOOL_SANDBOX_LEAST_BYTES = 8 * MIB
"""The lower bound of that limit."""
