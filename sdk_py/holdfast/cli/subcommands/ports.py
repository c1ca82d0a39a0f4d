"""``port``: forwards a local port to a port of a sandbox, or with ``--reverse`` the other way; ``--public`` prints a link."""

from __future__ import annotations

import signal
import sys

from holdfast import Address, SandboxClient
from holdfast._transport.threads.events import Event
from holdfast.cli.command_line import Arguments, UsageError
from holdfast.cli.output import print_json, print_line
from holdfast.cli.sandbox_names import opened


def port(arguments: Arguments) -> None:
    if arguments.public:
        _public(arguments)
        return
    if arguments.expires is not None:
        raise UsageError("--expires belongs to --public")
    if arguments.reverse:
        number, target = _reverse(arguments.port)
    else:
        local, separator, remote = arguments.port.rpartition(":")
        if not remote.isdecimal() or (separator and not local.isdecimal()):
            raise UsageError("a port must be written PORT or LOCAL:PORT", hint="write holdfast port SANDBOX 8000, or SANDBOX 9000:8000")
    stop = Event()  # not that of threading, whose lock a handler of signals cannot take while the main thread holds it
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: stop.set())
    with SandboxClient() as client, opened(client, arguments.sandbox) as sandbox:
        if arguments.reverse:
            with sandbox.listen(number, forward_to=target) as listener:
                _print(listener.address, as_json=arguments.json)
                stop.wait()
        else:
            with sandbox.tunnel(int(remote), local_port=int(local or 0)) as address:
                _print(address, as_json=arguments.json)
                stop.wait()


def _public(arguments: Arguments) -> None:
    """Print the link, and return: it works until it expires."""
    if arguments.reverse or not arguments.port.isdecimal():
        raise UsageError("--public takes a port of the sandbox", hint="write holdfast port --public SANDBOX 8000")
    with SandboxClient() as client, opened(client, arguments.sandbox) as sandbox:
        url = sandbox.preview_url(int(arguments.port), expires_s=arguments.expires)
    if arguments.json:
        print_json({"url": url, "address": url.address, "headers": url.headers, "expires_at": url.expires_at})
    else:
        print_line(url)


def _reverse(text: str) -> tuple[int, tuple[str, int]]:
    """The port in the sandbox, and the address of this machine's side. An IPv6 address is written in brackets."""
    inside, _, target = text.partition(":")
    host, _, local = target.rpartition(":")
    local = local if target else inside
    if not (inside.isdecimal() and local.isdecimal()) or not int(local):
        hint = "write holdfast port --reverse SANDBOX 8000, SANDBOX 8000:9000 or SANDBOX 8000:HOST:9000"
        raise UsageError("a reverse port must be written PORT, PORT:LOCAL or PORT:HOST:LOCAL", hint=hint)
    return int(inside), (host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(local))


def _print(address: Address, *, as_json: bool) -> None:
    if as_json:
        print_json({"host": address.host, "port": address.port})
    else:
        print_line(str(address))
    sys.stdout.flush()
