"""The bundle's ``datetime``: the interpreter's own in C; before Python 3.12 the standard library's module is first made in Python as well.

Owns nothing but the names. ``build`` puts it in.
"""

from _datetime import *  # type: ignore[import-not-found]  # noqa: F403
from _datetime import datetime_CAPI  # noqa: F401
