"""The session protocol of Holdfast, as pure code: no sockets, tasks, threads, clocks or loggers.

Both ends of a session (SDK and session agent) drive the same state machine, and the gateway borrows the
frames and the error table. ``schemas/PROTOCOL.md`` is the text this package implements; clause numbers in
comments refer to it.
"""

PROTOCOL_VERSION = 1
