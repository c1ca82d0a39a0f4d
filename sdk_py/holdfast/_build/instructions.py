"""The arguments of instructions: flags, JSON lists, pairs, mounts. One function for each form; ``stages`` calls them.

Owns what is refused because a sandbox cannot do it. Values are still unexpanded, except where it says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast._build.errors import wrong
from holdfast._build.lines import Heredoc, Line
from holdfast._build.words import expand, split_raw

NAMES = frozenset({
    "FROM", "ARG", "RUN", "CMD", "LABEL", "MAINTAINER", "EXPOSE", "ENV", "ADD", "COPY", "ENTRYPOINT", "VOLUME", "USER", "WORKDIR",
    "ONBUILD", "STOPSIGNAL", "HEALTHCHECK", "SHELL",
})  # fmt: skip
_FLAG = re.compile(r"--([a-z-]+)(?:=(.*))?", re.DOTALL)
_REPEATED = frozenset({"mount", "exclude"})
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ns|us|µs|ms|s|m|h))+")
_UNITS = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000, "m": 60_000_000_000, "h": 3_600_000_000_000}
_TRUE = ("", "true", "1")


@dataclass(slots=True)
class Flags:
    """The ``--flags`` of an instruction, and the words behind them."""

    values: dict[str, str] = field(default_factory=dict)
    lists: dict[str, list[str]] = field(default_factory=dict)
    rest: str = ""

    def boolean(self, name: str) -> bool:
        """Whether a flag without a value is set."""
        return self.values.get(name, "false") in _TRUE


def flags_of(line: Line, known: frozenset[str], refused: Mapping[str, str] = {}) -> Flags:
    """The flags at the beginning of the words. Raises ``DockerfileError`` for those that are not known, and for refused ones by name."""
    found, rest = Flags(), line.words
    while rest.startswith("--"):
        word = (rest.split(None, 1) or [""])[0]
        if word == "--":
            rest = rest[2:].lstrip()
            break
        match = _FLAG.fullmatch(word)
        name = match[1] if match else word
        if match is None or name not in known:
            more = refused.get(name, "")
            raise wrong(line.number, f"{line.name} {word:.60}: {'is not supported' if more else 'there is no such flag'}", more)
        if name in _REPEATED:
            found.lists.setdefault(name, []).append(match[2] or "")
        elif name in found.values:
            raise wrong(line.number, f"{line.name} --{name} is given twice")
        else:
            found.values[name] = match[2] or ""
        rest = rest[len(word) :].lstrip()
    found.rest = rest
    return found


def json_list(text: str) -> list[str] | None:
    """The words of the JSON form, None for the shell form: also what looks like JSON and is not, as in docker."""
    if not text.startswith("["):
        return None
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, list) and all(isinstance(one, str) for one in found) else None


def pairs(line: Line, escape: str, *, legacy: bool = True) -> list[tuple[str, str]]:
    """``NAME=VALUE ...`` of ENV, LABEL and ARG, or the old form ``NAME VALUE``, with quotes and variables as they were written."""
    words = split_raw(line.words, line.number, escape)
    if not words:
        raise wrong(line.number, f"{line.name} needs an argument", f"write {line.name} NAME=VALUE")
    if "=" not in words[0] and legacy:
        name, _, value = line.words.partition(" ") if " " in line.words else line.words.partition("\t")
        if not value.strip():
            raise wrong(line.number, f"{line.name} {name:.60} has no value", f"write {line.name} NAME=VALUE")
        return [(name, value.strip())]
    found: list[tuple[str, str]] = []
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise wrong(line.number, f"{line.name}: {word:.60} is not NAME=VALUE", "put a value with spaces in quotes")
        if not name:
            raise wrong(line.number, f"{line.name}: {word:.60} has no name")
        found.append((name, value))
    return found


def command_of(line: Line, text: str, shell: list[str], heredocs: tuple[Heredoc, ...] = ()) -> list[str]:
    """The command of RUN, CMD, ENTRYPOINT and HEALTHCHECK: the JSON form as it is, the shell form behind SHELL."""
    words = json_list(text)
    if words is not None and not heredocs:
        if line.name == "RUN" and not words:
            raise wrong(line.number, "RUN has no command")
        return words
    if not text:
        raise wrong(line.number, f"{line.name} has no command")
    if heredocs:
        return run_heredocs(text, heredocs, shell)
    return [*shell, text]


def run_heredocs(text: str, heredocs: tuple[Heredoc, ...], shell: list[str]) -> list[str]:
    """RUN with documents: alone, the document is the script; behind a command, the shell reads it as its own here-document."""
    if len(heredocs) == 1 and re.fullmatch(r"<<-?[\"']?[^\s\"']+[\"']?", text):
        script = heredocs[0].text
        if script.startswith("#!"):
            return ["", script]  # a program of its own: ``is_script``
        return [*shell, script]
    return [*shell, "".join([f"{text}\n", *(f"{one.text}{one.name}\n" for one in heredocs)])]


def is_script(command: list[str]) -> bool:
    """Whether the command is the text of a program with its own interpreter (``#!``), to be written to a file."""
    return len(command) == 2 and command[0] == "" and command[1].startswith("#!")


@dataclass(frozen=True, slots=True)
class Mount:
    """``RUN --mount``: something that is at ``target`` only while the command runs."""

    kind: str
    target: str
    source: str = ""
    stage: str = ""
    required: bool = False
    mode: int | None = None
    uid: int = 0
    gid: int = 0
    env: str = ""


_MOUNT_FIELDS = {
    "cache": {"id", "target", "dst", "destination", "sharing", "mode", "uid", "gid", "ro", "readonly", "rw", "readwrite", "from", "source"},
    "bind": {"target", "dst", "destination", "source", "src", "from", "rw", "readwrite", "ro", "readonly"},
    "tmpfs": {"target", "dst", "destination", "size"},
    "secret": {"id", "target", "dst", "destination", "required", "mode", "uid", "gid", "env"},
}


def mount_of(line: Line, text: str, values: Mapping[str, str], escape: str) -> Mount:
    """One ``--mount``, expanded. Raises ``DockerfileError``."""
    fields: dict[str, str] = {}
    for part in expand(text, values, line.number, escape).split(","):
        name, _, value = part.partition("=")
        fields[name.strip().lower()] = value
    kind = fields.pop("type", "bind")
    known = _MOUNT_FIELDS.get(kind)
    if known is None:
        hint = "give a key as a secret: --mount=type=secret,id=NAME" if kind == "ssh" else f"types are {', '.join(_MOUNT_FIELDS)}"
        raise wrong(line.number, f"RUN --mount=type={kind:.40} is not supported", hint)
    if strange := set(fields) - known:
        raise wrong(line.number, f"RUN --mount=type={kind} has no field {min(strange):.40}")
    target = fields.get("target") or fields.get("dst") or fields.get("destination") or ""
    name = fields.get("id", "")
    if kind == "secret":
        name = name or target.rsplit("/", 1)[-1]
        if not name:
            raise wrong(line.number, "RUN --mount=type=secret needs id=NAME")
        target = target or ("" if fields.get("env") else f"/run/secrets/{name}")
    elif not target:
        raise wrong(line.number, f"RUN --mount=type={kind} needs target=PATH")
    if kind == "cache" and fields.get("from"):
        raise wrong(line.number, "RUN --mount=type=cache,from= is not supported", "copy the files with COPY --from")
    try:
        mode = int(fields["mode"], 8) if fields.get("mode") else None
        uid, gid = int(fields.get("uid") or 0), int(fields.get("gid") or 0)
    except ValueError:
        raise wrong(line.number, "RUN --mount: mode, uid and gid are numbers") from None
    source = name if kind == "secret" else fields.get("source") or fields.get("src") or ""
    required = fields.get("required", "false") in _TRUE
    return Mount(kind, target, source, fields.get("from", ""), required, mode, uid, gid, fields.get("env", ""))


def healthcheck_of(line: Line, shell: list[str]) -> dict[str, object]:
    """The entry of the configuration; times are nanoseconds."""
    flags = flags_of(line, frozenset({"interval", "timeout", "start-period", "start-interval", "retries"}))
    kind, _, text = flags.rest.partition(" ")
    if kind.upper() == "NONE":
        if text.strip() or flags.values:
            raise wrong(line.number, "HEALTHCHECK NONE takes no arguments")
        return {"Test": ["NONE"]}
    if kind.upper() != "CMD":
        raise wrong(line.number, f"HEALTHCHECK {kind:.40}", "write HEALTHCHECK CMD COMMAND, or HEALTHCHECK NONE")
    words = json_list(text.strip())
    if not text.strip():
        raise wrong(line.number, "HEALTHCHECK CMD has no command")
    test = ["CMD", *words] if words is not None else ["CMD-SHELL", text.strip()]
    found: dict[str, object] = {"Test": test}
    names = {"interval": "Interval", "timeout": "Timeout", "start-period": "StartPeriod", "start-interval": "StartInterval"}
    for name, key in names.items():
        if name in flags.values and (length := _nanoseconds(line, name, flags.values[name])):
            found[key] = length
    if retries := flags.values.get("retries"):
        if not retries.isdecimal():
            raise wrong(line.number, f"HEALTHCHECK --retries={retries:.20} is not a number")
        found["Retries"] = int(retries)
    return found


def _nanoseconds(line: Line, name: str, text: str) -> int:
    if text == "0":
        return 0
    if not _DURATION.fullmatch(text):
        raise wrong(line.number, f"HEALTHCHECK --{name}={text:.20} is not a time", "write 30s, 1m30s, 500ms")
    return sum(int(float(amount) * _UNITS[unit]) for amount, unit in re.findall(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h)", text))
