"""``snapshot`` (docker's ``commit``), ``branch``, ``pause`` and ``resume`` (docker's ``unpause``)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from holdfast import HoldfastError, Lost, NotFoundError, PauseResult, SandboxClient, SandboxLostError
from holdfast.cli.command_line import Arguments
from holdfast.cli.output import print_json, print_line, print_note, report
from holdfast.cli.sandbox_names import found

if TYPE_CHECKING:
    from holdfast import Sandbox


def snapshot(arguments: Arguments) -> None:
    with SandboxClient() as client:
        image = found(client, arguments.sandbox, lambda sandbox: sandbox.snapshot(arguments.name))
    if arguments.json:
        print_json(dataclasses.asdict(image))
    else:
        print_line(image.digest if arguments.docker else image.name)


def branch(arguments: Arguments) -> None:
    turn = None if arguments.turn is None else int(arguments.turn)
    when: Any = "now" if arguments.now else "idle"
    with SandboxClient() as client:
        branches = found(
            client,
            arguments.sandbox,
            lambda sandbox: sandbox.branch(int(arguments.number), when=when, timeout=arguments.timeout, turn=turn),
        )
        for one in branches:
            one.close()
    if arguments.json:
        lost = [dataclasses.asdict(one) for one in branches.lost]
        print_json({"sandboxes": [one.id for one in branches], "lost": lost})
        return
    for one in branches:
        print_line(one.id)
    _note(branches.lost)


def pause(arguments: Arguments) -> int:
    when: Any = "now" if arguments.now else "idle"
    return _each(arguments, lambda sandbox: sandbox.pause(to_disk=arguments.to_disk, when=when))


def resume(arguments: Arguments) -> int:
    return _each(arguments, lambda sandbox: sandbox.resume())


def _each(arguments: Arguments, change: Callable[[Sandbox], PauseResult]) -> int:
    """Change each sandbox; those that do not exist are reported at the end. Returns the exit status."""
    missing, rows = list[HoldfastError](), list[dict[str, Any]]()
    with SandboxClient() as client:
        for word in arguments.sandbox:
            try:
                result = found(client, word, change)
            except (NotFoundError, SandboxLostError) as why:  # the sandboxes after it are changed nevertheless, as in docker
                missing.append(why)
                continue
            rows.append({"sandbox": result.info.to_map(), "lost": [dataclasses.asdict(one) for one in result.lost]})
            if not arguments.json:
                print_line(result.info.sandbox_id)
                _note(result.lost)
    if arguments.json:
        print_json(rows)
    for one in missing:
        report(one.to_map(), as_json=arguments.json)
    return 125 if missing else 0


def _note(lost: Iterable[Lost]) -> None:
    for one in lost:
        print_note(f"not continued: {one.kind} {one.name}: {one.reason}")
