"""The handlers of channels, imported when they are first needed, so that an agent answers sooner.

Owns which kind of channel is served by what, and the moment of the import. In a container ``server`` imports what nearly every sandbox uses
as soon as it listens. Other modules (archives, patches, terminals, tunnels, watches) are imported at their first use, which takes some
milliseconds and saves an idle agent 0.4 MiB. The node's warm process has imported everything before it forks (``warmup``).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping

from session_agent.agent.session.channels import Factory

_PACKAGE = "session_agent.agent"
USUAL = {
    "command": f"{_PACKAGE}.commands.command",
    "follow": f"{_PACKAGE}.commands.command",
    "shell": f"{_PACKAGE}.shell.channel",
    "read": f"{_PACKAGE}.files.read",
    "write": f"{_PACKAGE}.files.write",
    "fs": f"{_PACKAGE}.files.trees.operations",
}
"""Imported shortly after a container's agent listens."""
MODULES = USUAL | {
    "watch": f"{_PACKAGE}.files.trees.watch",
    "download": f"{_PACKAGE}.files.archives.download",
    "upload": f"{_PACKAGE}.files.archives.upload",
    "patch": f"{_PACKAGE}.files.patches.patch",
    "terminal": f"{_PACKAGE}.commands.terminal",
    "tunnel": f"{_PACKAGE}.network.tunnel",
    "listen": f"{_PACKAGE}.network.listen",
    "dump": f"{_PACKAGE}.shell.dump",
    "restore": f"{_PACKAGE}.shell.restore",
    "history": f"{_PACKAGE}.commands.history",
    "activity": f"{_PACKAGE}.commands.activity",
}
"""The module that serves a kind of channel, with a function ``open_`` and the kind."""


class LazyHandlers(Mapping[str, Factory]):
    """The handler of each kind of channel, imported when it is needed."""

    def load(self) -> None:
        """Import what most sandboxes use."""
        for kind in USUAL:
            self[kind]

    def __getitem__(self, kind: str) -> Factory:
        __import__(MODULES[kind])
        factory: Factory = getattr(sys.modules[MODULES[kind]], f"open_{kind}")
        return factory

    def __iter__(self) -> Iterator[str]:
        return iter(MODULES)

    def __len__(self) -> int:
        return len(MODULES)
