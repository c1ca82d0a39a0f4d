"""The state of a bash: the commands that print it, how that text is read, and the text that restores it.

Each entry is restored by a command of its own that expands and evaluates nothing, so that none can prevent another. Attributes that
change or evaluate a value (``declare -i``) are set after the value, read-only ones and functions last. Functions are read with ``extglob``
on, since they may have been defined so. Called by ``files`` and by ``driver``.
"""

from __future__ import annotations

import re

from .entries import Splitter
from .saved import Key, SavedState
from .sections import Section

_KNOWN = re.compile(rb"declare -|alias |umask [0-7]|trap -- ")
_VARIABLE = re.compile(rb"declare -([-A-Za-z]+) ([A-Za-z_][A-Za-z0-9_]*)(?:=(.*))?\Z", re.DOTALL)
_FUNCTION = re.compile(rb"declare -([A-Za-z]*f[A-Za-z]*) (\S+)\Z")
_ALIAS = re.compile(rb"alias (?:-- )?([^=]+)=", re.DOTALL)
_BUILTIN = b"\\builtin "
_MASK = _BUILTIN + b"umask -p; "
_OWN = frozenset(
    b"_ BASHOPTS SHELLOPTS BASH_VERSINFO EUID UID PPID BASHPID BASH_ARGC BASH_ARGV BASH_ARGV0 BASH_LINENO BASH_SOURCE BASH_SUBSHELL "
    b"BASH_COMMAND BASH_ALIASES BASH_CMDS FUNCNAME GROUPS DIRSTACK PIPESTATUS HISTCMD LINENO EPOCHREALTIME EPOCHSECONDS SRANDOM "
    b"BASH_MONOSECONDS BASH_TRAPSIG COMP_WORDBREAKS".split()
)
"""Variables that bash sets by itself."""
_UNSET = tuple(b"IFS PS4 OPTERR OPTIND PATH TERM SHLVL HOSTNAME".split())
"""Variables that a new bash has and that may have been unset."""
_DEFAULT_ON = (b"braceexpand", b"hashall", b"interactive-comments")
_NEVER = frozenset({b"emacs", b"vi", b"history", b"histexpand", b"monitor", b"noexec", b"onecmd"})
"""Options with which a shell would not run commands as the agent's do."""
_LATE = frozenset({b"errexit", b"posix", b"expand_aliases"})
"""Options that would change how the state is restored."""
_STACK = b"declare -a DIRSTACK="
_PRINT_STACK = b'\\builtin test -z "${DIRSTACK[1]+x}" || \\builtin declare -p DIRSTACK; '
"""``declare -p`` alone prints the directory stack as empty."""
_PUSHED = re.compile(rb"\[([0-9]+)\]=((?:\$'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"))", re.DOTALL)
_PLAIN = re.compile(rb"umask [0-7]+\n")
_SKIPPING = re.compile(rb"^(?:enable -n |builtin \(\) \n|declare -\S+ PROMPT_COMMAND=)| (?:DEBUG|ERR|RETURN)$", re.MULTILINE)
"""Traps, disabled builtins, a function in the place of ``builtin``, and what may set one of them after the state was printed."""
_INTERFERING = re.compile(
    rb"^(?:alias |trap |enable -n |declare -[A-Za-z]*f"
    rb"|declare -\S+ (?:(?:PROMPT_COMMAND|PS0|MAILCHECK)=|SHELLOPTS=\S*(?:allexport|keyword|posix|xtrace)))",
    re.MULTILINE,
)
"""Aliases, traps, functions, variables that bash expands at its prompt, and options that make arguments assignments, builtins assign,
or expand PS4."""


def print_state(mark: bytes) -> bytes:
    """Commands that print the state. ``mark`` prints the line between the entries and the texts of functions.

    If a builtin was disabled the mask is printed twice, which ``is_plain`` does not accept.
    """
    others = b"\\builtin alias -p || %s%s\\builtin trap -p || %s\\builtin declare -F; " % (_MASK, _MASK, _MASK)
    return b"\\builtin pwd; \\builtin declare -p; \\builtin enable -n; " + _PRINT_STACK + others + mark + b"\\builtin declare -f; "


def may_skip_commands(dump: bytes) -> bool:
    """Whether a shell in this state may skip a command: by a trap on DEBUG under extdebug, or because a builtin is disabled or replaced."""
    return _SKIPPING.search(dump) is not None


def is_plain(dump: bytes, mark: bytes, own_trap: bytes) -> bool:
    """Whether a shell in this state has no functions, aliases, traps, prompts or options that change what commands do."""
    entries, _, functions = dump.partition(mark)
    entries = entries.removesuffix(own_trap)
    mask = entries.rfind(b"\numask ") + 1
    return (
        not functions
        and mask > 0
        and _PLAIN.fullmatch(entries, mask) is not None
        and b"\numask " not in entries[: mask - 1]
        and b'\ndeclare -- PS1=""\ndeclare -- PS2=""\n' in entries
        and _INTERFERING.search(entries) is None
    )


def read(dump: Section, token: bytes) -> SavedState:
    """The state in the text that the commands of ``print_state`` printed. ``token`` marks what the agent itself has set."""
    state = SavedState("bash")
    mark = dump.mark(token, b"functions")
    middle = dump.find(mark)
    head = dump if middle < 0 else dump.part(0, middle)
    first = head.find(b"\ndeclare -")
    start = head.part(0, max(first, 0)).read()
    state.directory = start if start[:1] == b"/" else _first_path(start)
    own = b"__holdfast_" + token[:6]
    names: list[bytes] = []
    for text, is_whole in Splitter(_KNOWN).divide(head.part(first + 1, len(head)).blocks()):
        if function := _FUNCTION.match(text):
            names.append(function[2])
            if function[1] != b"f":
                state.entries[("exported function" if b"x" in function[1] else "attributes of function", function[2])] = text
            continue
        if text.startswith(_STACK) and b" [1]=" in text:
            state.entries["directory stack", b""] = text
            continue
        key = _key(text)
        if key is None or (key[0] == "variable" and (key[1] in _OWN or key[1] == own)):
            if key is not None and key[1] in (b"SHELLOPTS", b"BASHOPTS"):
                _read_options(state, text)
            continue
        if key == ("trap", b"EXIT") and token in text:
            state.saves_at_exit = True
            continue
        state.entries[key] = text
        if not is_whole:
            state.drop(key)
    if not any(key[0] == "option" for key in state.entries):
        state.lost.append("variables, options and functions: the builtin declare was disabled")
    if middle >= 0:
        _read_functions(state, dump.part(middle + len(mark), len(dump)), names)
    return state


def _first_path(text: bytes) -> bytes:
    """The directory among lines that a trap on DEBUG has printed before and after it."""
    return next((line for line in text.split(b"\n") if line[:1] == b"/"), b"")


def _key(text: bytes) -> Key | None:
    if variable := _VARIABLE.match(text):
        return ("variable", variable[2])
    if alias := _ALIAS.match(text):
        return ("alias", alias[1])
    if text.startswith(b"umask "):
        return ("umask", b"")
    if text.startswith(b"trap -- "):
        return ("trap", text.rpartition(b" ")[2])
    return None


def _read_options(state: SavedState, text: bytes) -> None:
    value = text.partition(b'="')[2].rstrip(b'"')
    kind = b"set -o " if b" SHELLOPTS=" in text else b"shopt -s "
    for name in value.split(b":"):
        if name:
            state.entries["option", name] = kind + name


def _read_functions(state: SavedState, texts: Section, names: list[bytes]) -> None:
    """Divide the text of all functions, which bash prints in the order of their names."""
    text = b"\n" + texts.read() if len(texts) <= _FUNCTION_BYTES else b""
    found: list[tuple[bytes, int]] = []
    at = 0
    for name in names:
        start = text.find(b"\n%s () \n" % name, at)
        if start < 0 or name == b"builtin":  # a function of this name would replace what control lines use
            state.lost.append(f"function {name.decode('utf-8', 'replace')}")
        if start >= 0:
            at = start
            found.append((name, start))
    if found and found[0][1] > 0:  # a trap on DEBUG or tracing has printed lines before and after the functions
        text = text[: (text + b"\n").rfind(b"\n}\n") + 3]
    for (name, start), end in zip(found, [*(start for _, start in found[1:]), len(text)], strict=False):
        if name != b"builtin":
            state.functions[name] = text[start + 1 : end].rstrip(b"\n")


_FUNCTION_BYTES = 8 * 1024 * 1024


def restore(state: SavedState, variable: bytes, exit_trap: bytes) -> bytes:
    """The text that restores ``state`` in a new bash. ``variable``: one that no command uses."""
    lines = [
        b"for %s in ${BASHOPTS//:/ }; do shopt -u $%s; done" % (variable, variable),
        b"unset -v %s $(compgen -e)" % variable,  # environment variables that are not in the state had been unset
        *(b"unset -v " + name for name in _UNSET if ("variable", name) not in state.entries),
        *(
            _BUILTIN + text
            for (what, name), text in state.entries.items()
            if what == "option" and text[:5] == b"shopt" and name not in _LATE
        ),
    ]
    values: dict[bytes, list[bytes]] = {}
    last: list[bytes] = []
    for (what, name), text in state.entries.items():
        if what == "variable":
            values[name] = _value(text, last)
    directory = [*values.pop(b"PWD", [b"unset -v PWD"]), *values.pop(b"OLDPWD", [b"unset -v OLDPWD"])]
    later = values.pop(b"POSIXLY_CORRECT", [])
    if state.directory:
        lines += [b"if \\builtin cd -- %s; then" % quote(state.directory), *directory, b"fi"]
    for commands in values.values():
        lines += commands
    if not state.directory:
        lines.append(b'\\builtin cd -- "$PWD"')
    for stack in (text for (what, _), text in state.entries.items() if what == "directory stack"):
        pushed = [match[2] for match in _PUSHED.finditer(stack) if match[1] != b"0"]
        lines += [b"\\builtin pushd -n -- " + directory + b" >/dev/null" for directory in reversed(pushed)]
    lines += _entries(state, "alias") + _entries(state, "umask")
    lines += _functions(state, variable) + later + _entries(state, "trap")
    if state.saves_at_exit:
        lines.append(exit_trap.rstrip(b"\n"))
    lines += last
    shell_options = [name for (what, name), text in state.entries.items() if what == "option" and text.startswith(b"set ")]
    lines += [b"\\builtin set +o " + name for name in _DEFAULT_ON if name not in shell_options]
    if ("option", b"expand_aliases") in state.entries:
        lines.append(b"\\builtin shopt -s expand_aliases")
    early = [name for name in shell_options if name not in _LATE and name not in _NEVER]
    lines += [b"\\builtin set -o " + name for name in (*early, *(name for name in shell_options if name in _LATE))]
    return b"\n".join(lines) + b"\n"


def _value(text: bytes, last: list[bytes]) -> list[bytes]:
    """The commands that restore a variable; those for after all others are added to ``last``."""
    match = _VARIABLE.match(text)
    assert match is not None
    flags, name, value = match.groups()
    if b"n" in flags:
        last.append(_evaluate(text))
        return []
    if b"r" in flags:
        last.append(b"\\builtin declare -r " + name)
    array = b"A" if b"A" in flags else b"a" if b"a" in flags else b"-"
    attributes = bytes(flag for flag in flags if flag not in b"-aArn")
    lines = [_evaluate(b"declare -%s %s%s" % (array, name, b"" if value is None else b"=" + value))]
    if attributes:
        lines.append(b"\\builtin declare -%s %s" % (attributes, name))
    return lines


def _evaluate(declaration: bytes) -> bytes:
    """The command for a declaration: an error in it ends nothing else. An array needs the plain word ``declare``."""
    return b"\\builtin eval " + quote(declaration)


def _entries(state: SavedState, wanted: str) -> list[bytes]:
    return [_BUILTIN + text for (what, _), text in state.entries.items() if what == wanted]


def _functions(state: SavedState, variable: bytes) -> list[bytes]:
    """All at once, if a subshell can read them; else one by one."""
    if not state.functions:
        return []
    attempt = b'( \\builtin eval "$%s" ) && \\builtin eval "$%s"' % (variable, variable)
    lines = [b"\\builtin shopt -s extglob", b"%s=%s" % (variable, quote(b"\n".join(state.functions.values()))), attempt + b" || {"]
    for text in state.functions.values():
        lines += [b"%s=%s" % (variable, quote(text)), attempt]
    lines += [b"}", b"\\builtin unset -v " + variable]
    if ("option", b"extglob") not in state.entries:
        lines.append(b"\\builtin shopt -u extglob")
    attributes = (text for (what, _), text in state.entries.items() if what.endswith(" function"))
    return lines + [_BUILTIN + text for text in attributes]


def quote(text: bytes) -> bytes:
    """``text`` quoted as one word, for any shell."""
    return b"'" + text.replace(b"'", b"'\\''") + b"'"
