"""The stages of a Dockerfile, and which of them a target needs.

Owns the order FROM and ARG have, and names of stages. A stage's instructions are interpreted one by one by the builder, since later ones
depend on values of earlier ones.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from holdfast._build.errors import wrong
from holdfast._build.instructions import NAMES, flags_of, json_list
from holdfast._build.lines import File, Line
from holdfast._build.words import expand

_STAGE = re.compile(r"[a-z][a-z0-9_.-]*")
PROXIES = tuple(name for base in ("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY") for name in (base, base.lower()))
"""Arguments that need no ARG: RUN sees them, and they are neither in the image nor in the keys of the cache."""


@dataclass(slots=True)
class Stage:
    """One FROM and what follows. ``base`` is an image, ``scratch`` or, with ``of_stage``, the number of an earlier stage."""

    number: int
    line: int
    base: str
    name: str = ""
    of_stage: int | None = None
    lines: list[Line] = field(default_factory=list)
    needs: set[int] = field(default_factory=set)
    """Earlier stages that it begins with, or copies from."""

    @property
    def title(self) -> str:
        """What messages call it."""
        return self.name or f"stage-{self.number}"


@dataclass(slots=True)
class Plan:
    """``wanted`` are the stages to build, in this order; the last is the target."""

    stages: list[Stage]
    wanted: list[Stage]
    globals: dict[str, str]
    provided: dict[str, str]
    """The arguments of ``automatic``."""
    """Values of the arguments before the first FROM."""


def automatic(arch: str) -> dict[str, str]:
    """The arguments that BuildKit sets, for linux on a processor, which is named as OCI does."""
    names: dict[str, str] = {}
    for who in ("TARGET", "BUILD"):
        names |= {f"{who}PLATFORM": f"linux/{arch}", f"{who}OS": "linux", f"{who}ARCH": arch, f"{who}VARIANT": ""}
    return names


def plan(file: File, arguments: Mapping[str, str], arch: str, target: str = "") -> Plan:
    """Read the stages. Raises ``DockerfileError``."""
    provided = automatic(arch)
    values = dict(provided)
    globals_: dict[str, str] = {}
    stages: list[Stage] = []
    for line in file.lines:
        if line.name not in NAMES:
            raise wrong(line.number, f"there is no instruction {line.name:.40}", _similar(line.name))
        if line.name == "FROM":
            stages.append(_stage(line, stages, values, file.escape))
        elif stages:
            stages[-1].lines.append(line)
        elif line.name == "ARG":
            for name, default in argument_pairs(line, values, file.escape):
                value = arguments.get(name, default)
                if value is not None:
                    globals_[name] = values[name] = value
                else:
                    globals_.setdefault(name, values.get(name, ""))
        else:
            raise wrong(line.number, f"{line.name} stands before FROM", "only ARG may; begin with FROM IMAGE")
    if not stages:
        raise wrong(file.lines[-1].number, "there is no FROM", "begin with FROM IMAGE")
    for stage in stages:
        _find_needs(stage, stages, file.escape, values)
    last = _target(stages, target)
    wanted, waiting = {last.number}, [last]
    while waiting:
        for number in waiting.pop().needs - wanted:
            wanted.add(number)
            waiting.append(stages[number])
    return Plan(stages, [stages[number] for number in sorted(wanted)], globals_, provided)


def argument_pairs(line: Line, values: Mapping[str, str], escape: str) -> list[tuple[str, str | None]]:
    """The names and defaults of ARG."""
    from holdfast._build.words import split_raw

    words = split_raw(line.words, line.number, escape)
    if not words:
        raise wrong(line.number, "ARG needs a name")
    found: list[tuple[str, str | None]] = []
    known = dict(values)
    for word in words:
        name, equals, default = word.partition("=")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", name):
            raise wrong(line.number, f"ARG {name:.60}: is not a name")
        value = expand(default, known, line.number, escape) if equals else None
        if value is not None:
            known[name] = value
        found.append((name, value))
    return found


def _stage(line: Line, before: list[Stage], values: Mapping[str, str], escape: str) -> Stage:
    hint = "build for the service's processor, or let the service pull the other image under a name of its own"
    flags = flags_of(line, frozenset({"platform"}))
    platform = expand(flags.values.get("platform", ""), values, line.number, escape)
    if platform and platform != values["TARGETPLATFORM"] and platform.removesuffix("/v8") != values["TARGETPLATFORM"]:
        raise wrong(line.number, f"FROM --platform={platform:.60} is not supported: this service runs {values['TARGETPLATFORM']}", hint)
    words = flags.rest.split()
    if len(words) not in (1, 3) or (len(words) == 3 and words[1].upper() != "AS"):
        raise wrong(line.number, f"FROM {flags.rest:.100}: is not understood", "write FROM IMAGE or FROM IMAGE AS NAME")
    base = expand(words[0], values, line.number, escape)
    if not base:
        raise wrong(line.number, f"FROM {words[0]:.100} has no value", "give the argument a default, or --build-arg NAME=VALUE")
    name = words[2].lower() if len(words) == 3 else ""
    if name and not _STAGE.fullmatch(name):
        raise wrong(line.number, f"{name:.60} cannot be the name of a stage")
    if name and any(one.name == name for one in before):
        raise wrong(line.number, f"there are two stages {name:.60}")
    stage = Stage(len(before), line.number, base, name)
    stage.of_stage = next((one.number for one in before if one.name and one.name == base.lower()), None)
    if stage.of_stage is not None:
        stage.needs.add(stage.of_stage)
    return stage


def stage_named(stages: list[Stage], before: int, word: str) -> Stage | None:
    """The stage of this name or number among those before ``before``; None means an image."""
    named = next((one for one in stages[:before] if one.name and one.name == word.lower()), None)
    if named is None and word.isdecimal() and int(word) < before:
        return stages[int(word)]
    return named


def _find_needs(stage: Stage, stages: list[Stage], escape: str, values: Mapping[str, str]) -> None:
    for line in stage.lines:
        if line.name in ("COPY", "ADD", "RUN"):
            for source in _sources(line.words):
                word = expand(source, values, line.number, escape)
                found = stage_named(stages, stage.number, word)
                if found is not None:
                    stage.needs.add(found.number)
                elif word.isdecimal() or word.lower() == stage.name:
                    raise wrong(line.number, f"there is no stage {word:.60} before this one")
        if line.name in ("COPY", "ADD") and line.words.startswith("[") and json_list(line.words) is None:
            raise wrong(line.number, f"{line.name} {line.words:.60}: is not a JSON list of texts")


def _sources(words: str) -> Iterator[str]:
    """The stages and images in the flags of an instruction; what stands behind the flags is a command or a path."""
    for word in itertools.takewhile(lambda word: word.startswith("--") and word != "--", words.split()):
        if word.startswith("--from="):
            yield word.removeprefix("--from=")
        elif word.startswith("--mount="):
            fields = word.removeprefix("--mount=").split(",")
            yield from (field.removeprefix("from=") for field in fields if field.startswith("from="))


def _target(stages: list[Stage], target: str) -> Stage:
    if not target:
        return stages[-1]
    found = stage_named(stages, len(stages), target)
    if found is None:
        names = ", ".join(stage.title for stage in stages)
        raise wrong(stages[-1].line, f"there is no stage {target:.60}", f"--target takes one of {names}")
    return found


def _similar(name: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name, NAMES, 1)
    return f"do you mean {close[0]}?" if close else f"instructions are {', '.join(sorted(NAMES))}"
