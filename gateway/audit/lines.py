"""Entries of the audit log: what is recorded of a command, and what of it is masked.

Pure. A command is recorded by its digest and its first words, with what looks like a secret masked: values of variables and options with
such names, credentials in addresses, and long random words. Text that a user types as an ordinary word cannot be told from any other.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any, Final

from holdfast_wire.limits import PATH_BYTES

_WORDS_CHARACTERS: Final = 120
_MASK: Final = "***"
_NAME: Final = r"[A-Za-z0-9_.-]"
_TELLING: Final = r"(?:key|token|secret|passw(?:or)?d|passwd|pwd|auth|credential|cookie|session)"
_VALUE: Final = r"(\"[^\"]*\"|'[^']*'|\S+)"
_PATTERNS: Final = (
    (re.compile(rf"(?i)(?<!{_NAME})(?={_NAME}*?{_TELLING})({_NAME}++\s*+[=:]\s*+){_VALUE}"), rf"\1{_MASK}"),
    (re.compile(rf"(?i)(?<!{_NAME})(?=[A-Za-z0-9_.]*+-{_NAME}*?{_TELLING})({_NAME}++\s++){_VALUE}"), rf"\1{_MASK}"),
    (re.compile(r"(?i)\b((?:bearer|basic)\s++)\S+"), rf"\1{_MASK}"),
    (re.compile(r"(?<!\w)(\w++://)[^/\s@]++@"), rf"\1{_MASK}@"),
    (re.compile(r"(?i)(\s-[pu]\s*)(\S*:\S+)"), rf"\1{_MASK}"),
    (re.compile(r"\b(?:hfk?_|sk-|ghp_|gho_|github_pat_|xox[abp]-|AKIA|eyJ)[A-Za-z0-9_.-]{8,}"), _MASK),
)
"""Each looks at a character a bounded number of times, whatever the text: it comes from clients and sandboxes. A name is tried only at its
beginning, and not given back (``++``)."""
_LONG_WORD: Final = re.compile(r"[A-Za-z0-9+/_=-]{24,}")


def masked(text: str) -> str:
    """``text`` with what looks like a secret replaced."""
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return _LONG_WORD.sub(lambda found: _MASK if _is_random(found[0]) else found[0], text)


def masked_path(path: str) -> str:
    """The path of a file, as far as it can be one, masked."""
    return masked(path[:PATH_BYTES])


def command_facts(command: str | bytes | Sequence[str]) -> dict[str, Any]:
    """What is recorded of a command: ``command_sha256`` and ``command``, its first words.

    A list of words has the digest of the words with a NUL after each.
    """
    if isinstance(command, str | bytes):
        content = command if isinstance(command, bytes) else command.encode("utf-8", "replace")
        text = content[: 16 * _WORDS_CHARACTERS].decode("utf-8", "replace")
    else:
        content = b"".join(word.encode("utf-8", "replace") + b"\0" for word in command)
        text = " ".join(command[:40])[: 16 * _WORDS_CHARACTERS]
    words = " ".join(masked(text).split())  # masked before it is cut, so that no half of a secret is left
    shown = words if len(words) <= _WORDS_CHARACTERS else words[:_WORDS_CHARACTERS] + "…"
    return {"command": shown, "command_sha256": hashlib.sha256(content).hexdigest()}


def _is_random(word: str) -> bool:
    """Whether a long word looks like a key: it has digits and letters, and is no path of words."""
    if "/" in word and not word.endswith("="):
        return any(_is_random(part) for part in word.split("/") if len(part) >= 24)
    has_digit, has_letter = any(c.isdigit() for c in word), any(c.isalpha() for c in word)
    return has_digit and has_letter and sum(c.isdigit() or c.isupper() for c in word) >= len(word) // 6
