"""The handlers of channels, imported when they are first wanted: an agent answers before it can do everything.

Owns which kind of channel is served by what, and the moment of the import; ``handlers`` has all at once. In a container ``server`` imports
what nearly every sandbox uses as soon as it listens. The rest (archives, patches, terminals, tunnels, watches) is imported at its first
use, which takes some milliseconds and saves an idle agent 0.4 MiB. The node's warm process has imported everything before it forks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from session_agent.agent.session.channels import Factory

_USUAL = ("command", "follow", "shell", "read", "write", "fs")
_RARE = ("watch", "download", "upload", "patch", "terminal", "tunnel")


class LazyHandlers(Mapping[str, Factory]):
    """Which kind of channel is served by what, by need."""

    def load(self) -> None:
        """Import what most sandboxes use."""
        for kind in _USUAL:
            self[kind]

    def __getitem__(self, kind: str) -> Factory:
        match kind:
            case "command":
                from session_agent.agent.commands.command import open_command

                return open_command
            case "follow":
                from session_agent.agent.commands.command import open_follow

                return open_follow
            case "shell":
                from session_agent.agent.shell.channel import open_shell

                return open_shell
            case "read":
                from session_agent.agent.files.read import open_read

                return open_read
            case "write":
                from session_agent.agent.files.write import open_write

                return open_write
            case "fs":
                from session_agent.agent.files.operations import open_fs

                return open_fs
            case "watch":
                from session_agent.agent.files.watching import open_watch

                return open_watch
            case "download":
                from session_agent.agent.files.archive import open_download

                return open_download
            case "upload":
                from session_agent.agent.files.extract import open_upload

                return open_upload
            case "patch":
                from session_agent.agent.files.patch import open_patch

                return open_patch
            case "terminal":
                from session_agent.agent.commands.terminal import open_terminal

                return open_terminal
            case "tunnel":
                from session_agent.agent.network.tunnel import open_tunnel

                return open_tunnel
            case _:
                raise KeyError(kind)

    def __iter__(self) -> Iterator[str]:
        return iter((*_USUAL, *_RARE))

    def __len__(self) -> int:
        return len(_USUAL) + len(_RARE)
