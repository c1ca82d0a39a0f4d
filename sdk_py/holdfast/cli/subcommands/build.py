"""``build``: an image from a Dockerfile. Progress goes to standard error, the name or record of the image to standard output."""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
from pathlib import Path

from holdfast import BuildError, BuildEvent, SandboxClient
from holdfast._build.request import secret_of
from holdfast.cli.command_line import Arguments, UsageError
from holdfast.cli.output import escape, pairs, print_json, print_line, report

_WIDTH = 100
_FAILED = 1


def build(arguments: Arguments) -> int:
    if arguments.network not in (None, "default", "none", "host"):
        raise UsageError(f"--network {arguments.network} is not known", hint="write default or none")
    secrets = {}
    for text in arguments.secret:
        try:
            name, data = secret_of(text, os.environ)
        except ValueError as why:
            raise UsageError(f"--secret {why}") from None
        secrets[name] = data
    shown = _Progress(quiet=arguments.quiet or arguments.json or arguments.progress == "quiet")
    dockerfile = _standard_input() if "-" in (arguments.file, arguments.dir) else arguments.file
    tags = arguments.tag or [None]
    with tempfile.TemporaryDirectory(prefix=".holdfast-") as empty, SandboxClient() as client:
        if arguments.platform and arguments.platform != (machine := f"linux/{client.images._architecture()}"):
            raise UsageError(f"--platform {arguments.platform}: this service runs {machine}", hint="leave out the option")
        try:
            image = client.images.build(
                Path(empty if arguments.dir == "-" else arguments.dir),
                tags[0],
                dockerfile=dockerfile,
                build_args=_arguments(arguments.build_arg),
                target=arguments.target or "",
                use_cache=not arguments.no_cache,
                pull=arguments.pull,
                labels=pairs(arguments.label, "a label", "team=a"),
                block_network=arguments.network == "none",
                secrets=secrets,
                cpu=arguments.cpu,
                memory=arguments.memory,
                disk=arguments.disk,
                timeout=arguments.timeout,
                shared=arguments.shared,
                on_event=shown,
            )
        except BuildError as why:
            shown.end()
            report(why.to_map() | ({"output": why.output} if arguments.json else {}), as_json=arguments.json)
            if shown.quiet and not arguments.json:
                sys.stderr.write(escape(why.output))
            return _FAILED
        for other in tags[1:]:
            client.images.tag(image.name, str(other), shared=arguments.shared)
    shown.end()
    if arguments.iidfile:
        Path(arguments.iidfile).write_text(image.digest, "utf-8")
    if arguments.json:
        print_json(dataclasses.asdict(image))
    else:
        print_line(image.digest if arguments.quiet else image.name)
    return 0


def _standard_input() -> bytes:
    return sys.stdin.buffer.read()


def _arguments(words: list[str]) -> dict[str, str]:
    """``NAME=VALUE``, or ``NAME`` with the value of this environment, left out where there is none, as with docker."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name:
            raise UsageError(f"--build-arg {word} has no name", hint="write --build-arg NAME=VALUE")
        if equals:
            found[name] = value
        elif name in os.environ:
            found[name] = os.environ[name]
    return found


class _Progress:
    """One line for each step, the output of commands below it, and how long it took."""

    def __init__(self, *, quiet: bool) -> None:
        self.quiet = quiet
        self._fresh = True
        self._cached = False

    def __call__(self, event: BuildEvent) -> None:
        if self.quiet:
            return
        match event.kind:
            case "step":
                self._cached = False
                text = " ".join(event.text.split())
                text = text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"
                self._write(f"[{event.step}/{event.steps}] {event.stage}: {text}\n")
            case "output":
                self._write("".join(f"  {row}" for row in event.text.splitlines(keepends=True)) if self._fresh else event.text)
            case "cached":
                self._cached = True
            case "done":
                self.end()
                if self._cached:
                    self._write("  cached\n")
                elif event.seconds >= 0.05:
                    self._write(f"  done in {event.seconds:.1f} s\n")

    def end(self) -> None:
        """End a line that a command left open."""
        if not self._fresh:
            self._write("\n")

    def _write(self, text: str) -> None:
        if text:
            sys.stderr.write(escape(text.replace("\r\n", "\n").replace("\r", "\n")))
            sys.stderr.flush()
            self._fresh = text.endswith(("\n", "\r"))


def prune(arguments: Arguments) -> None:
    """``image prune``."""
    with SandboxClient() as client:
        removed = client.images.prune()
    if arguments.json:
        print_json({"removed": removed})
    else:
        print_line(f"{removed} steps of builds removed")
