"""The bundle's ``email.utils``: the date of the WebSocket handshake is all that is used of it.

Owns that date (RFC 9110 §5.6.7). ``build`` puts it in.
"""

from __future__ import annotations

import time

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def formatdate(timeval: float | None = None, localtime: bool = False, usegmt: bool = False) -> str:
    t = time.gmtime(timeval)
    return f"{_DAYS[t[6]]}, {t[2]:02} {_MONTHS[t[1] - 1]} {t[0]:04} {t[3]:02}:{t[4]:02}:{t[5]:02} GMT"
