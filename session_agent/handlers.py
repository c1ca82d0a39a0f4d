"""Which kind of channel is served by what: the one table of the agent's abilities.

Called by ``server``; ``sessions`` answers a kind that is missing here with ``unsupported``.
"""

from __future__ import annotations

from collections.abc import Mapping

from .archiving import open_download
from .channels import Factory
from .commands import open_command, open_follow
from .extracting import open_upload
from .file_ops import open_fs
from .file_read import open_read
from .file_write import open_write
from .patching import open_patch
from .shell_channel import open_shell
from .terminal import open_terminal
from .tunnel import open_tunnel

FACTORIES: Mapping[str, Factory] = {
    "command": open_command,
    "follow": open_follow,
    "shell": open_shell,
    "terminal": open_terminal,
    "read": open_read,
    "write": open_write,
    "fs": open_fs,
    "download": open_download,
    "upload": open_upload,
    "patch": open_patch,
    "tunnel": open_tunnel,
}
