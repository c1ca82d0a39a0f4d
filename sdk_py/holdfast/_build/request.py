"""The arguments of a build, and reading its files on this machine."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from holdfast._build.context import Context
from holdfast._build.lines import MOST_BYTES, File, read
from holdfast._build.patterns import Ignored
from holdfast._build.stages import Plan, plan
from holdfast._build_results import BuildEvent
from holdfast._errors import DockerfileError

_NAMES = ("Dockerfile", "Containerfile")


@dataclass(slots=True)
class BuildRequest:
    """See ``AsyncImages.build``."""

    directory: Path
    name: str | None = None
    dockerfile: str | os.PathLike[str] | bytes | None = None
    build_args: Mapping[str, str] = field(default_factory=dict)
    target: str = ""
    use_cache: bool = True
    pull: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    block_network: bool = False
    secrets: Mapping[str, bytes] = field(default_factory=dict)
    cpu: float | str | None = None
    memory: int | str | None = None
    disk: int | str | None = None
    timeout: float | None = None
    shared: bool = False
    on_event: Callable[[BuildEvent], None] | None = None


@dataclass(slots=True)
class Opened:
    """What is built: the file, its stages and the context."""

    file: File
    plan: Plan
    context: Context
    path: str


def open_build(request: BuildRequest, architecture: str) -> Opened:
    """Read the Dockerfile and .dockerignore. ``architecture``: the service's processor, in OCI's words.

    Raises ``DockerfileError`` and ``OSError``. Blocks.
    """
    if not request.directory.is_dir():
        raise NotADirectoryError(20, "the build context is not a directory", str(request.directory))
    place: Path | None = None
    if isinstance(request.dockerfile, bytes):
        data, shown = request.dockerfile, "Dockerfile"
    else:
        place = _dockerfile(request)
        with place.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        shown = place.name
    try:
        parsed = read(data)
        made = plan(parsed, request.build_args, architecture, request.target)
    except DockerfileError as why:
        raise located(why, shown) from None
    ignored = _ignored(request.directory, place)
    return Opened(parsed, made, Context(request.directory, ignored), shown)


def _dockerfile(request: BuildRequest) -> Path:
    if request.dockerfile is not None:
        return Path(os.fspath(request.dockerfile))  # type: ignore[arg-type]
    for name in _NAMES:
        if (request.directory / name).is_file():
            return request.directory / name
    raise FileNotFoundError(2, "there is no Dockerfile in the build context", str(request.directory / _NAMES[0]))


def _ignored(directory: Path, dockerfile: Path | None) -> Ignored:
    places = [directory / ".dockerignore"]
    if dockerfile is not None:
        places.insert(0, dockerfile.with_name(f"{dockerfile.name}.dockerignore"))
    for place in places:
        if place.is_file():
            try:
                return Ignored(place.read_text("utf-8"))
            except ValueError as why:
                raise DockerfileError(str(why), line=1, path=place.name, hint="correct or remove this line") from None
    return Ignored()


def located(why: DockerfileError, path: str) -> DockerfileError:
    """The same error with the name of the file."""
    return why if why.path else DockerfileError(why.problem, line=why.line, path=path, hint=why.hint)


def secret_of(text: str, environment: Mapping[str, str]) -> tuple[str, bytes]:
    """``id=NAME[,src=FILE|,env=NAME]``, as docker's ``--secret``. Raises ``ValueError`` and ``OSError``."""
    fields = dict(part.partition("=")[::2] for part in text.split(","))
    name, source, variable = fields.get("id", ""), fields.get("src") or fields.get("source"), fields.get("env")
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
        raise ValueError(f"{text!r:.60} has no id: write id=NAME,src=FILE or id=NAME,env=VARIABLE")
    if source:
        return name, Path(source).expanduser().read_bytes()
    variable = variable or name
    if variable not in environment:
        raise ValueError(f"the variable {variable} of the secret {name} is not set")
    return name, environment[variable].encode()
