"""``version``: the version of this installation. ``info``: what the service is and has."""

from __future__ import annotations

import sys
from typing import Any

import holdfast
from holdfast.cli.command_line import Arguments


def version(arguments: Arguments) -> None:
    """``holdfast version``. ``--docker`` also needs the service, as ``docker version`` needs its daemon."""
    if arguments.format is None and not arguments.docker:
        sys.stdout.write(f'{{"version": "{holdfast.__version__}"}}\n' if arguments.json else f"holdfast {holdfast.__version__}\n")
        return
    from holdfast.cli.templates import template

    shown = None if arguments.format is None else template(arguments.format)
    own = {"Version": holdfast.__version__, "Os": "linux", "Arch": _architecture()}
    record: dict[str, Any] = {"Client": own, "Server": {**own, "Url": ""}, "version": holdfast.__version__}
    if arguments.docker or ".Server" in arguments.format:
        with holdfast.SandboxClient() as client:
            client.list_sandboxes({"holdfast.dev/none": ""})  # the cheapest request that needs the service and the key
            record["Server"]["Url"] = client.url
    if shown is not None:
        sys.stdout.write(shown(record) + "\n")
        return
    for part in ("Client", "Server"):
        sys.stdout.write(f"{part}: Holdfast\n" + "".join(f" {name + ':':<10}{value}\n" for name, value in record[part].items()))


def info(arguments: Arguments) -> None:
    """``holdfast info``."""
    from holdfast.cli.templates import template

    shown = None if arguments.format is None else template(arguments.format)
    with holdfast.SandboxClient() as client:
        sandboxes, images = client.list_sandboxes(), client.images.list()
        record = {
            "Name": client.url,
            "ServerVersion": holdfast.__version__,
            "Containers": len(sandboxes),
            "ContainersRunning": sum(one.ready and not one.paused for one in sandboxes),
            "ContainersPaused": sum(bool(one.paused) for one in sandboxes),
            "ContainersStopped": sum(one.status == "failed" for one in sandboxes),
            "Images": len(images),
            "OSType": "linux",
            "Architecture": _architecture(),
        }
    if shown is not None:
        sys.stdout.write(shown(record) + "\n")
    elif arguments.json:
        from holdfast.cli.output import print_json

        print_json(record)
    else:
        sys.stdout.write("".join(f"{name}: {value}\n" for name, value in record.items()))


def _architecture() -> str:
    import os

    machine = os.uname().machine
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)
