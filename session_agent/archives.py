"""The archive channels of the agent by name: ``download``, ``upload``.

Owns nothing; the work is in ``archiving`` and ``extracting``, the format in ``tar_format`` and ``tar_reader``. Called by the
channel table.
"""

from __future__ import annotations

from .archiving import open_download
from .extracting import open_upload

__all__ = ["open_download", "open_upload"]
