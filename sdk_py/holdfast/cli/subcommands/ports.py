"""``port``: forwards a local port to a port of a sandbox, until interrupted."""

from __future__ import annotations

import signal
import sys
import threading

from holdfast import SandboxClient
from holdfast.cli.command_line import Arguments, UsageError
from holdfast.cli.output import print_json, print_line
from holdfast.cli.sandbox_names import opened


def port(arguments: Arguments) -> None:
    local, separator, remote = arguments.port.rpartition(":")
    if not remote.isdecimal() or (separator and not local.isdecimal()):
        raise UsageError("a port must be written PORT or LOCAL:PORT", hint="write holdfast port SANDBOX 8000, or SANDBOX 9000:8000")
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with (
        SandboxClient() as client,
        opened(client, arguments.sandbox) as sandbox,
        sandbox.tunnel(int(remote), local_port=int(local or 0)) as address,
    ):
        if arguments.json:
            print_json({"host": address.host, "port": address.port})
        else:
            print_line(str(address))
        sys.stdout.flush()
        stop.wait()
