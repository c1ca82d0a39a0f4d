"""Which commands cannot change the state of a shell, so that no snapshot is needed after them.

Decides from the text alone, and conservatively: programs and harmless builtins with plain words, quoted strings, redirections, pipes and
lists, and no expansion other than of file names. Functions, aliases, traps, prompts and some options can change what such a command does;
``BashDialect.is_plain`` finds them in the last snapshot. Called by ``files``.
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
"""Reserved words, and builtins that can change the state (``test -v 'a[x=1]'``) or run their arguments. Builtins that are loaded from
files are not listed."""

# Atomic groups and not possessive quantifiers, which Python 3.11.0 to 3.11.4 match wrongly around a group.
_NAME = rb"[A-Za-z0-9_./+-]"
_FIRST = rb"(?!(?:%s)(?!%s))(?>%s+)(?![^ \t\n;|&])" % (b"|".join(re.escape(word.encode()) for word in _CHANGING.split()), _NAME, _NAME)
_WORD = rb"""(?>(?:[A-Za-z0-9_./:,+@%=*?~^-]|'[^']*'|"[^"$`\\!]*")+)"""
# One digit only: the private descriptors have more digits, and a builtin that redirects one of those may not restore it exactly.
_REDIRECTION = rb"(?<![0-9])(?:[0-9]?>&[12]|(?:&>|[0-9]?>)>?[ \t]*%s|[0-9]?<[ \t]*%s)" % (_WORD, _WORD)
_COMMAND = rb"%s(?>(?:[ \t]*%s|[ \t]+%s)*)" % (_FIRST, _REDIRECTION, _WORD)
_LIST = re.compile(rb"[ \t\n]*%s(?>(?:[ \t]*(?:\|\|?|&&|;|\n)[ \t\n]*%s)*)[ \t\n;]*" % (_COMMAND, _COMMAND))


def leaves_state(script: bytes) -> bool:
    """Whether ``script``, run by a bash whose state ``is_plain``, changes nothing in it but ``$?`` and ``$_``."""
    return len(script) <= _LONGEST and _LIST.fullmatch(script) is not None
