"""Which kind of channel is served by what: the one table of the handlers of the agent.

Called by ``server``; ``sessions`` answers a kind that is missing here with ``unsupported``.
"""

from __future__ import annotations

from collections.abc import Mapping

from session_agent.agent.commands.command import open_command, open_follow
from session_agent.agent.commands.terminal import open_terminal
from session_agent.agent.files.archive import open_download
from session_agent.agent.files.extract import open_upload
from session_agent.agent.files.operations import open_fs
from session_agent.agent.files.patch import open_patch
from session_agent.agent.files.read import open_read
from session_agent.agent.files.watching import open_watch
from session_agent.agent.files.write import open_write
from session_agent.agent.network.tunnel import open_tunnel
from session_agent.agent.session.channels import Factory
from session_agent.agent.shell.channel import open_shell

FACTORIES: Mapping[str, Factory] = {
    "command": open_command,
    "follow": open_follow,
    "shell": open_shell,
    "terminal": open_terminal,
    "read": open_read,
    "write": open_write,
    "fs": open_fs,
    "watch": open_watch,
    "download": open_download,
    "upload": open_upload,
    "patch": open_patch,
    "tunnel": open_tunnel,
}
