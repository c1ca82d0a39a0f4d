"""``create``, ``list``, ``inspect``, ``update``, ``stop`` and ``rm``.

Owns the translation of options to a request (``make``, which ``run`` uses too) and the printing of records.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, get_args

from holdfast_wire.rest import Status

from holdfast import (
    ConflictError,
    HoldfastError,
    ImageNotFoundError,
    ImagePullError,
    InvalidArgumentError,
    NotFoundError,
    SandboxClient,
    SandboxInfo,
    SandboxLostError,
    SandboxNotFoundError,
)
from holdfast.cli.command_line import Arguments, UsageError
from holdfast.cli.output import age, pairs, print_json, print_line, print_note, report, table, variables
from holdfast.cli.sandbox_names import found

if TYPE_CHECKING:
    from holdfast import Sandbox

_DOCKER_UNITS = {"k": "Ki", "m": "Mi", "g": "Gi", "t": "Ti"}
_OPTIONS = {
    "sandbox_id": "--id (--name)", "cpu": "--cpu", "memory": "--memory", "disk": "--disk", "shm_size": "--shm-size",
    "lifetime_s": "--lifetime", "idle_timeout_s": "--idle-timeout", "ready_timeout_s": "--ready-timeout",
}  # fmt: skip
"""The option that sets each argument of ``create_sandbox``: error messages name the option that was typed."""
_FILTERS = ("label", "status", "ancestor", "id", "name")
_STATUSES = (*get_args(Status), "running")
"""``running`` is docker's word for ``ready``."""
_ASK_FROM = 2
"""`rm --all` asks for confirmation, on a terminal, if it would delete at least so many sandboxes."""


def make(client: SandboxClient, arguments: Arguments, *, entrypoint: bool = False) -> Sandbox:
    """Create the sandbox that the options of ``create`` and ``run`` describe; ``entrypoint``: also start the image's own command in it."""
    client._rest.on_wait = lambda text: print_note(f"holdfast: {text}")
    if arguments.pull is not None:
        from holdfast.cli.subcommands.images import prepare_image

        prepare_image(client, arguments.image, arguments.pull)
    try:
        return client.create_sandbox(
            arguments.image,
            cpu=arguments.cpu,
            memory=_size("--memory", arguments.memory),
            disk=_size("--disk", arguments.disk),
            env=variables(arguments),
            labels=pairs(arguments.label, "--label"),
            ready_timeout_s=arguments.ready_timeout,
            lifetime_s=arguments.lifetime,
            idle_timeout_s=arguments.idle_timeout,
            sandbox_id=arguments.id,
            block_network=arguments.network in (None, "none"),
            entrypoint=entrypoint,
            ulimits=_ulimits(arguments.ulimit),
            shm_size=_size("--shm-size", arguments.shm_size),
            record=arguments.record,
        )
    except InvalidArgumentError as why:
        argument, _, rest = why.message.partition(" ")
        if argument in _OPTIONS:
            why.message = f"{_OPTIONS[argument]} {rest}"
        raise
    except ConflictError as why:
        if arguments.id and why.code == "sandbox_exists":
            why.hint = f"holdfast rm {arguments.id} deletes it; or choose another --name"
        raise
    except (ImageNotFoundError, ImagePullError) as why:
        why.hint = arguments.not_values.get(arguments.image, why.hint)
        raise


def _ulimits(words: list[str]) -> dict[str, int | tuple[int, int]] | None:
    """The limits in ``--ulimit``, in docker's form ``nofile=1024:4096``."""
    found: dict[str, int | tuple[int, int]] = {}
    for name, value in pairs(words, "--ulimit", "nofile=1024:4096").items():
        soft, _, hard = value.partition(":")
        try:
            found[name] = (int(soft), int(hard or soft))
        except ValueError:
            message = f"--ulimit must be written NAME=SOFT:HARD, not {name}={value}"
            raise UsageError(message, "for example --ulimit nofile=1024:4096") from None
    return found or None


def _size(option: str, text: str | None) -> str | None:
    """Convert a size with docker's units, such as ``512m`` or ``4gb``, to the service's units."""
    if text is None:
        return None
    size = re.fullmatch(r"([0-9]+(?:\.[0-9]*)?)([A-Za-z]*)", text)
    if size is None:
        raise UsageError(f"{option} must be a size, not {text!r}", hint="write it as 512m, 4g, 512Mi or 4Gi")
    digits, unit = size.groups()
    return digits + _DOCKER_UNITS.get(unit.removesuffix("b"), unit)


def create(arguments: Arguments) -> None:
    with SandboxClient() as client:
        sandbox = make(client, arguments)
        if arguments.json:
            print_json(sandbox.info().to_map())
        else:
            print_line(sandbox.id)


def list_(arguments: Arguments) -> None:
    filters = _filters(arguments.filter)
    selector = [*arguments.label, *filters.pop("label", ())]
    shown = None if arguments.format is None else _rows(arguments.format)
    with SandboxClient(owner=arguments.owner, project=arguments.project) as client:
        found = sorted(client.list_sandboxes(selector=selector, all_owners=arguments.all_owners), key=lambda info: info.created_at)
    if arguments.docker and not arguments.all:
        found = [info for info in found if info.status != "failed"]
    found = [info for info in found if all(any(_passes(info, what, value) for value in values) for what, values in filters.items())]
    if shown is not None:
        from holdfast.cli.docker_records import sandbox_row

        shown([sandbox_row(info) for info in found])
    elif arguments.json:
        print_json([info.to_map() for info in found])
    elif arguments.quiet:
        for info in found:
            print_line(info.sandbox_id)
    else:
        now = time.time()
        heads: tuple[str, ...] = ("SANDBOX", "IMAGE", "STATUS", "AGE", "CPU", "MEMORY", "LABELS")
        rows = [_row(info, now) for info in found]
        if arguments.all_owners:
            heads = ("OWNER", "PROJECT", *heads)
            rows = [(info.owner or "", info.project or "", *row) for info, row in zip(found, rows, strict=True)]
        table(heads, rows)


def _filters(words: list[str]) -> dict[str, list[str]]:
    """The values of each filter; a sandbox is listed if one value of every filter matches, as in docker. Raises ``UsageError``."""
    found: dict[str, list[str]] = {}
    for word in words:
        what, _, value = word.partition("=")
        if what not in _FILTERS:
            raise UsageError(f"there is no filter {what!r}", hint="label=NAME=VALUE, status=ready, ancestor=IMAGE, id=ID, name=NAME")
        if what == "status" and value not in _STATUSES:
            raise UsageError(f"the filter status must be one of {', '.join(_STATUSES)}, not {value!r}")
        if not value:  # an empty value would match every sandbox
            raise UsageError(f"the filter {what} needs a value: {what}={'NAME=' * (what == 'label')}VALUE")
        found.setdefault(what, []).append(value)
    return found


def _passes(info: SandboxInfo, what: str, value: str) -> bool:
    if what == "status":
        return value == info.status or (value == "running" and info.status == "ready")
    if what == "ancestor":
        return value in info.image
    return value in info.sandbox_id


def _row(info: SandboxInfo, now: float) -> tuple[object, ...]:
    labels = ",".join(f"{name}={value}" for name, value in sorted(info.labels.items()))
    about = info.reason or ("paused" if info.paused else None)
    status = f"{info.status} ({about})" if about else info.status
    return (info.sandbox_id, info.image, status, age(info.created_at, now), info.cpu, info.memory, labels)


def inspect(arguments: Arguments) -> int:
    records: list[dict[str, Any]] = []
    shown = None if arguments.format is None else _template(arguments.format)
    missing: list[HoldfastError] = []
    with SandboxClient() as client:
        try:
            for word in arguments.sandbox:
                try:
                    info = found(client, word, lambda sandbox: sandbox.refresh())
                    if shown is not None or arguments.docker:
                        from holdfast.cli.docker_records import sandbox_record

                        records.append(sandbox_record(info))
                    else:
                        records.append(info.to_map())
                except (NotFoundError, SandboxLostError) as why:  # the sandboxes after it are shown nevertheless, as in docker
                    missing.append(why)
        finally:
            if shown is not None:
                for record in records:
                    print_line(shown(record))
            elif records or len(arguments.sandbox) > 1 or arguments.docker:
                print_json(records)
            for one in missing:
                report(one.to_map(), as_json=arguments.json)
    return 125 if missing else 0


def _template(text: str) -> Callable[[dict[str, Any]], str]:
    from holdfast.cli.templates import template

    return template(text)


def _rows(text: str) -> Callable[[list[dict[str, Any]]], None]:
    """A function that prints records in this format. Raises ``UsageError``."""
    from holdfast.cli.output import print_rows

    return print_rows(text)


def update(arguments: Arguments) -> int:
    """``update SANDBOX...``: change labels and limits of each; those that do not exist are reported at the end, as in docker."""
    labels: dict[str, str | None] = {**pairs(arguments.label, "--label"), **dict.fromkeys(arguments.unlabel)}
    changes: dict[str, Any] = {
        "labels": labels or None,
        "lifetime_s": arguments.lifetime,
        "idle_timeout_s": arguments.idle_timeout,
        "heartbeat_timeout_s": arguments.heartbeat_timeout,
    }
    if not any(value is not None for value in changes.values()):
        raise UsageError("nothing is changed", hint="give --label, --unlabel, --lifetime, --idle-timeout or --heartbeat-timeout")
    records: list[dict[str, Any]] = []
    missing: list[HoldfastError] = []
    with SandboxClient() as client:
        for word in arguments.sandbox:
            try:
                records.append(found(client, word, lambda sandbox: sandbox.update(**changes)).to_map())
                if not arguments.json:
                    print_line(records[-1]["sandbox_id"])
            except (NotFoundError, SandboxLostError) as why:
                missing.append(why)
    if arguments.json:
        print_json(records)
    for one in missing:
        report(one.to_map(), as_json=arguments.json)
    return 125 if missing else 0


def stop(arguments: Arguments) -> int:
    with SandboxClient() as client:
        return _removed(client, arguments.sandbox, as_json=arguments.json)


def remove(arguments: Arguments) -> int:
    everything = arguments.all or bool(arguments.label) or (arguments.owner is not None and not arguments.sandbox)
    if everything == bool(arguments.sandbox):
        if everything:
            raise UsageError("ids of sandboxes cannot be combined with --all or -l", hint="leave one of them out")
        raise UsageError("no sandbox is named", hint="give ids, which `holdfast list` shows, or --all, or -l NAME=VALUE")
    with SandboxClient(owner=arguments.owner, project=arguments.project) as client:
        ids = list(arguments.sandbox)
        if everything:
            ids = [info.sandbox_id for info in client.list_sandboxes(selector=arguments.label)]
            if len(ids) >= _ASK_FROM and not arguments.force and not _agreed(len(ids)):
                return 1
        return _removed(client, ids, as_json=arguments.json, quiet=arguments.force or everything)


def _agreed(count: int) -> bool:
    """Whether the user confirms the deletion; True if there is no terminal to ask on."""
    if not sys.stdin.isatty() or not sys.stderr.isatty():
        return True
    sys.stderr.write(f"delete {count} sandboxes? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _removed(client: SandboxClient, ids: Iterable[str], *, as_json: bool, quiet: bool = False) -> int:
    """Delete the sandboxes; ids that do not exist are reported at the end. Returns the exit status."""
    missing: list[str] = []
    removed: list[str] = []
    for word in ids:
        try:
            removed.append(found(client, word, _deleted))
        except (NotFoundError, SandboxLostError):
            missing.append(word)
        else:
            if not as_json:
                print_line(removed[-1])
    if as_json:
        print_json({"removed": removed, "missing": missing})
    for word in missing if not quiet else ():
        report(SandboxNotFoundError(f"there is no sandbox {word!r}").to_map(), as_json=as_json)
    return 125 if missing and not quiet else 0


def _deleted(sandbox: Sandbox) -> str:
    if not sandbox.delete():
        raise SandboxNotFoundError(f"there is no sandbox {sandbox.id}")
    return sandbox.id
