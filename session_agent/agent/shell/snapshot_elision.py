"""Which commands leave a shell as it was, so that its state need not be written down again after them.

Owns one question, answered from the text alone and on the safe side: only programs run by plain words, quoted strings, redirections,
pipes and lists, with no expansion but of file names, can be elided. Builtins that are known to change nothing may be among them. Functions,
aliases, traps, prompts and some options can make anything of such a command: whether the shell has any is asked of its last dump
(``driver``). Called by ``state_files``.
"""

from __future__ import annotations

import re

_LONGEST = 4096
_CHANGING = (
    ". alias bg bind break builtin caller case cd command compgen complete compopt continue coproc declare dirs disown do done elif else "
    "enable esac eval exec exit export fc fg fi for function getopts hash history if in jobs kill let local logout mapfile popd printf "
    "pushd read readarray readonly return select set shift shopt source suspend test then time times trap type typeset ulimit umask "
    "unalias unset until wait while"
)
"""Builtins that can change something (``test -v 'a[x=1]'``) or run what follows them, and reserved words. A builtin that was loaded from
a file is not among them."""

_NAME = rb"[A-Za-z0-9_./+-]"
_FIRST = rb"(?!(?:%s)(?!%s))%s++(?![^ \t\n;|&])" % (b"|".join(re.escape(word.encode()) for word in _CHANGING.split()), _NAME, _NAME)
_WORD = rb"""(?:[A-Za-z0-9_./:,+@%=*?~^-]|'[^']*'|"[^"$`\\!]*")++"""
# of one digit: the driver's own descriptors have more, and a builtin that was lent one of them may not give it back as it was
_REDIRECTION = rb"(?<![0-9])(?:[0-9]?>&[12]|(?:&>|[0-9]?>)>?[ \t]*%s|[0-9]?<[ \t]*%s)" % (_WORD, _WORD)
_COMMAND = rb"%s(?:[ \t]*%s|[ \t]+%s)*+" % (_FIRST, _REDIRECTION, _WORD)
_LIST = re.compile(rb"[ \t\n]*%s(?:[ \t]*(?:\|\|?|&&|;|\n)[ \t\n]*%s)*+[ \t\n;]*" % (_COMMAND, _COMMAND))


def leaves_state(script: bytes) -> bool:
    """Whether ``script``, run by a bash that ``BashDialect.is_plain``, leaves nothing in it but ``$?`` and ``$_``."""
    return len(script) <= _LONGEST and _LIST.fullmatch(script) is not None
