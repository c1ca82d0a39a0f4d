"""The file channels of the agent by name: ``read``, ``write``, ``fs``.

Owns nothing; the work is in ``file_read``, ``file_write``, ``file_ops`` and ``file_search``. Called by the channel table.
"""

from __future__ import annotations

from .file_ops import open_fs
from .file_read import open_read
from .file_write import open_write

__all__ = ["open_fs", "open_read", "open_write"]
