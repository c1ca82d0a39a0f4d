"""Arguments of the public methods as maps for the wire: checked here, so that a mistake is told before anything is sent.

Pure. Owns the names of parameters of channels (PROTOCOL §7) and of REST bodies. Called by the generated and the written face.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from os import PathLike, fspath
from typing import Any, Literal, TypedDict

import msgpack
from holdfast_wire.limits import ID_BYTES, MESSAGE_BYTES, PATH_BYTES, SPOOL_COMMAND_BYTES
from holdfast_wire.rest import parse_bytes, parse_cpu

from holdfast._errors import HoldfastError, InvalidArgumentError, InvalidPathError, RequestTooLargeError, typed

Command = str | Sequence[str]
Outlive = Literal["kill", "adopt", "wait"]
Spool = Literal["block", "tail"]
RemotePath = str | bytes | PathLike[str]

READY_TIMEOUT_S = 3600.0
_SANDBOX_ID = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{ID_BYTES - 1}}}")
_GROUP_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9])?")
_TTL_MOST_S = 86400
PARAMS_BYTES = MESSAGE_BYTES - 1024
"""What all parameters of one request come to at most: it travels as one message, with its ids."""


def new_id() -> str:
    """A fresh command id: 128 random bits."""
    return os.urandom(16).hex()


def bad(message: str, hint: str = "") -> InvalidArgumentError:
    """The caller's mistake."""
    return InvalidArgumentError("invalid_argument", message, hint=hint)


def given(**values: Any) -> dict[str, Any]:
    """Those of ``values`` that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def seconds(value: float | None, name: str = "timeout") -> float | None:
    """A positive number of seconds, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
        raise bad(f"{name} is a positive number of seconds, not {value!r}")
    return float(value)


def name_of(value: str | None, what: str) -> str | None:
    """An id or a name of 1 to 128 bytes, or None."""
    if value is None:
        return None
    if not isinstance(value, str) or not 1 <= len(value.encode("utf-8", "surrogatepass")) <= ID_BYTES or not value.isprintable():
        raise bad(f"{what} is 1 to {ID_BYTES} printable characters")
    return value


def sandbox_id_of(sandbox_id: str) -> str:
    """The id of a sandbox that is there already: it becomes part of a path."""
    if not isinstance(sandbox_id, str) or not _SANDBOX_ID.fullmatch(sandbox_id):
        raise bad(f"no sandbox has the id {sandbox_id!r:.80}", hint="letters, digits, '.', '_' and '-': list yours with `holdfast list`")
    return sandbox_id


def path_of(path: RemotePath) -> str | bytes:
    """A path in the sandbox as it travels: text, or bytes where it is not UTF-8."""
    try:
        raw = fspath(path)
        raw = raw.encode("utf-8", "surrogateescape") if isinstance(raw, str) else raw
    except (TypeError, UnicodeEncodeError):
        raw = b""
    if not 1 <= len(raw) <= PATH_BYTES or b"\0" in raw:
        raise InvalidPathError("invalid_path", f"a path is 1 to {PATH_BYTES} bytes without NUL")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def text_path(path: RemotePath) -> str:
    """A path for REST, which only knows text."""
    checked = path_of(path)
    if isinstance(checked, bytes):
        raise InvalidPathError("invalid_path", "a path that is not UTF-8 needs a session", hint="use WebSockets")
    return checked


def environment(env: Mapping[str, str] | None) -> dict[str, str] | None:
    """Environment variables: names and values are strings without NUL."""
    if env is None:
        return None
    if not isinstance(env, Mapping):
        raise bad("env maps strings to strings")
    for name, value in env.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise bad("env maps strings to strings")
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise bad(f"{name!r} cannot be the name of an environment variable, or its value holds NUL")
    return dict(env)


def input_of(data: object) -> bytes | None:
    """Standard input as bytes."""
    return None if data is None else content_of(data, "input")


def words_of(words: object, what: str) -> list[str]:
    """A list of strings, from any iterable of them."""
    found: list[Any] = list(words) if hasattr(words, "__iter__") and not isinstance(words, (bytes, Mapping)) else [None]
    if not all(isinstance(word, str) for word in found):
        raise bad(f"{what} is a list of strings")
    return found


def content_of(data: object, what: str = "data") -> bytes:
    """Bytes, or text as UTF-8."""
    if isinstance(data, bytes):
        return data
    try:
        return data.encode() if isinstance(data, str) else bytes(memoryview(data))  # type: ignore[arg-type]
    except (TypeError, ValueError):  # a number would be that many NULs, were it given to bytes()
        raise bad(f"{what} is bytes, or text that UTF-8 can hold") from None


def output_limit(value: int | None, default: int) -> int:
    """How many bytes of each stream are kept."""
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise bad(f"max_output_bytes is a number of bytes, 0 or more, not {value!r:.40}")
    return value


def script_of(script: str) -> str:
    """A command string for a shell."""
    if not isinstance(script, str):
        raise bad("a shell runs a string", hint="give a list of arguments to sandbox.exec() instead")
    if "\0" in script:
        raise bad("a command cannot hold NUL")
    return script


def command_of(command: Command) -> dict[str, Any]:
    """``script`` for a string, ``argv`` for a list."""
    if isinstance(command, str):
        return {"script": script_of(command)}
    argv: list[object] = list(command) if hasattr(command, "__iter__") and not isinstance(command, (Mapping, AbstractSet)) else []
    if not argv or not all(isinstance(word, str) and "\0" not in word for word in argv):
        raise bad("a command is a string or a list of at least one string, without NUL")
    return {"argv": argv}


def bounded(params: dict[str, Any]) -> dict[str, Any]:
    """``params``, when they can travel: valid text that fits one message."""
    try:
        size = len(msgpack.packb(params))
    except UnicodeEncodeError:
        raise bad("commands, names and variables are text that UTF-8 can hold", "for other bytes write a file and run that") from None
    except (TypeError, ValueError, OverflowError) as wrong:
        raise bad(f"a parameter has the wrong type: {wrong}") from None
    if size > PARAMS_BYTES:
        hint = "write the script or data to a file with sandbox.files.write() and run that, or give it as input"
        raise RequestTooLargeError("request_too_large", f"the command and its variables are {size} bytes, over {PARAMS_BYTES}", hint=hint)
    return params


def command_params(
    command: Command,
    *,
    command_id: str | None,
    cwd: RemotePath | None,
    env: Mapping[str, str] | None,
    user: str | int | None,
    timeout: float | None,
    login: bool,
    stdin: bool,
    outlive: Outlive,
    spool: Spool = "block",
    spool_bytes: int | None = None,
    detached: bool = False,
) -> dict[str, Any]:
    """Open params of a ``command`` channel."""
    if outlive not in ("kill", "adopt", "wait"):
        raise bad("outlive is 'kill', 'adopt' or 'wait'")
    if spool not in ("block", "tail"):
        raise bad("spool is 'block' or 'tail'")
    if spool_bytes is not None and (type(spool_bytes) is not int or not 1 <= spool_bytes <= SPOOL_COMMAND_BYTES):
        raise bad(f"spool_bytes is a number of bytes from 1 to {SPOOL_COMMAND_BYTES}, not {spool_bytes!r:.40}")
    return bounded(
        {
            "id": name_of(command_id, "command_id") or new_id(),
            **command_of(command),
            **given(
                cwd=None if cwd is None else path_of(cwd),
                env=environment(env),
                user=user,
                timeout_s=seconds(timeout),
                login=login or None,
                stdin="pipe" if stdin else None,
                outlive=None if outlive == "kill" else outlive,
                spool=None if spool == "block" else spool,
                spool_bytes=spool_bytes,
                detached=detached or None,
            ),
        }
    )


def run_params(script: str, timeout: float | None, stdin: bool) -> dict[str, Any]:
    """Params of a ``Run`` on a shell."""
    params: dict[str, Any] = {"script": script_of(script)}
    if timeout is not None:
        params["timeout_s"] = seconds(timeout)
    if stdin:
        params["stdin"] = "pipe"
    return bounded(params)


def labels_of(labels: Mapping[str, str] | None) -> dict[str, str]:
    """Labels: strings to strings."""
    labels = {} if labels is None else labels
    if not isinstance(labels, Mapping) or not all(isinstance(key, str) and isinstance(value, str) and key for key, value in labels.items()):
        raise bad("labels map strings to strings")
    return dict(labels)


class ClusterOptions(TypedDict, total=False):
    """What ``create_sandbox`` passes on to a cluster, spelled as REST spells it (``POST /sandboxes`` of the OpenAPI document)."""

    gpu: int
    """Short for ``resources={"nvidia.com/gpu": …}``."""
    resources: Mapping[str, int]
    """Extended resources by name."""
    pids: int
    volumes: Sequence[Mapping[str, Any]]
    """``{"kind": "empty"|"claim"|"secret"|"config", "path": …, "source": …, "size": …, "in_memory": …, "read_only": …}``."""
    node_selector: Mapping[str, str]
    tolerations: Sequence[Mapping[str, Any]]
    """``{"key": …, "operator": …, "value": …, "effect": …, "seconds": …}``."""
    runtime_class: str
    priority_class: str
    service_account: str
    image_pull_secrets: Sequence[str]
    user: int
    user_group: int
    architecture: Literal["amd64", "arm64"]


def cluster_body(options: ClusterOptions) -> dict[str, Any]:
    """The fields of those that are given."""
    unknown = sorted(set(options) - set(ClusterOptions.__annotations__))
    if unknown:
        raise bad(f"create_sandbox has no argument {unknown[0]!r}", hint=f"one of {', '.join([*_CREATE, *ClusterOptions.__annotations__])}")
    return {name: plain(value) for name, value in options.items() if value is not None}


def network_body(network: Mapping[str, Any]) -> dict[str, Any]:
    """What a sandbox may reach, as REST spells it."""
    if not isinstance(network, Mapping):
        raise bad('network is a map, as {"mode": "internet"}')
    return {str(name): plain(value) for name, value in network.items()}


def plain(value: Any) -> Any:
    """Maps and sequences of any kind as JSON takes them."""
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(inner) for inner in value]
    return value


_CREATE = (
    "image", "cpu", "memory", "disk", "env", "labels", "timeout", "lifetime_s", "idle_timeout_s", "heartbeat_timeout_s", "sandbox_id",
    "block_network", "network", "group",
)  # fmt: skip


def create_body(
    image: str,
    *,
    sandbox_id: str,
    cpu: float | str | None,
    memory: int | str | None,
    disk: int | str | None,
    env: Mapping[str, str] | None,
    labels: Mapping[str, str] | None,
    timeout: float | None,
    lifetime_s: float | None,
    idle_timeout_s: float | None,
    heartbeat_timeout_s: float | None,
    block_network: bool,
    network: Mapping[str, Any] | None = None,
    group: str | None = None,
    group_lease: str = "",
    cluster: ClusterOptions | None = None,
) -> dict[str, Any]:
    """The body of ``POST /sandboxes``."""
    if not isinstance(image, str) or not image or not image.isprintable():
        raise bad("image is the name of an image")
    try:
        cpu is None or parse_cpu(cpu)
        memory is None or parse_bytes(memory)
        disk is None or parse_bytes(disk, "disk")
    except HoldfastError as wrong:
        raise typed(wrong) from None
    return {
        "image": image,
        "sandbox_id": sandbox_id,
        **({"block_network": bool(block_network)} if network is None else {"network": network_body(network)}),
        "wait": True,
        "timeout": seconds(timeout) or READY_TIMEOUT_S,
        **given(
            cpu=cpu,
            memory=memory,
            disk=disk,
            env=environment(env) or None,
            labels=labels_of(labels) or None,
            lifetime_s=seconds(lifetime_s, "lifetime_s"),
            idle_timeout_s=seconds(idle_timeout_s, "idle_timeout_s"),
            heartbeat_timeout_s=seconds(heartbeat_timeout_s, "heartbeat_timeout_s"),
            group=None if group is None else group_name_of(group),
            group_lease=group_lease or None,
        ),
        **cluster_body(cluster or {}),
    }


def group_name_of(name: str) -> str:
    """A group's name: it becomes part of a path."""
    if not isinstance(name, str) or not _GROUP_NAME.fullmatch(name):
        raise bad("a group's name is letters, digits, '.', '_' and '-', at most 100, with a letter or digit at both ends")
    return name


def ttl_of(ttl_s: float) -> float:
    """How long a lease lasts without a heartbeat."""
    given_s = seconds(ttl_s, "ttl_s")
    if given_s is None or given_s > _TTL_MOST_S:
        raise bad(f"ttl_s is a number of seconds above 0 and up to {_TTL_MOST_S}")
    return given_s


def port_of(port: int) -> int:
    """A TCP port."""
    if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65535:
        raise bad("a port is a number from 1 to 65535")
    return port


def shell_params(
    name: str | None, shell: str, cwd: RemotePath | None, env: Mapping[str, str] | None, user: str | int | None
) -> dict[str, Any]:
    """Open params of a ``shell`` channel."""
    if shell not in ("auto", "bash", "sh"):
        raise bad("shell is 'auto', 'bash' or 'sh'")
    return bounded(
        given(
            name=name_of(name, "name"),
            shell=None if shell == "auto" else shell,
            cwd=None if cwd is None else path_of(cwd),
            env=environment(env),
            user=user,
        )
    )


def size_of(rows: int, cols: int) -> tuple[int, int]:
    """A terminal's size in character cells."""
    if not all(type(size) is int and 1 <= size <= 10_000 for size in (rows, cols)):
        raise bad("rows and cols are numbers from 1 to 10000")
    return rows, cols


def terminal_params(
    command: Command | None,
    rows: int,
    cols: int,
    name: str | None,
    cwd: RemotePath | None,
    env: Mapping[str, str] | None,
    user: str | int | None,
    login: bool,
) -> dict[str, Any]:
    """Open params of a ``terminal`` channel; a command string is split as a shell splits words."""
    size_of(rows, cols)
    if isinstance(command, str):
        import shlex

        try:
            command = shlex.split(script_of(command))
        except ValueError as wrong:
            raise bad(f"the command cannot be split into words: {wrong}") from None
    return bounded(
        {
            "rows": rows,
            "cols": cols,
            **given(
                name=name_of(name, "name"),
                argv=None if command is None else command_of(command)["argv"],
                cwd=None if cwd is None else path_of(cwd),
                env=environment(env),
                user=user,
                login=login or None,
            ),
        }
    )
