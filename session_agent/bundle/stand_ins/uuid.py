"""The bundle's ``uuid``: names of connections in debugging logs; the standard library's module looks at the platform.

Owns that name. ``build`` puts it in.
"""

from __future__ import annotations

import os


def uuid4() -> str:
    return os.urandom(16).hex()
