"""Builds the maps that are sent as requests from the arguments of the public methods.

Pure. Owns the names of parameters of channels (PROTOCOL §7) and of REST bodies, and how large a request may be. Does not own what a
single argument may be (``_arguments``). Called by both APIs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Literal, TypedDict

from holdfast_wire.limits import DECODE_ITEMS, MESSAGE_BYTES, PARAMS_BYTES, PARAMS_ITEMS, SPOOL_COMMAND_BYTES
from holdfast_wire.rest import parse_bytes, parse_cpu

from holdfast._arguments import (
    RemotePath,
    bad,
    command_id_of,
    environment,
    given,
    group_name_of,
    labels_of,
    name_of,
    path_of,
    plain,
    sandbox_id_of,
    script_of,
    seconds,
    size_of,
    time_limit,
    words_of,
)
from holdfast._changes import label_query
from holdfast._errors import ArgumentsTooLongError, HoldfastError, RequestTooLargeError, typed

Command = str | Sequence[str]
Outlive = Literal["adopt", "kill", "wait"]
Spool = Literal["block", "tail"]
Stderr = Literal["pipe", "stdout"]
Keep = Literal["head", "tail", "both"]
READY_TIMEOUT_S = 3600.0
_CONTAINERS = frozenset({"argv", "env", "exclude"})
"""The parameters that are lists or maps. Others could hold more than the other end decodes, which would end the session."""
MESSAGE_PARAMS_BYTES = MESSAGE_BYTES - 1024
"""What all parameters of a request that travels as one message, with its ids, come to at most."""
_SPLIT_CHARACTERS = 256 * 1024
"""The time of ``shlex.split`` grows with the square of the length of a word."""
_SHORT_BYTES = 4096
"""A script of ASCII characters up to this size fits without being packed to find out."""


def command_of(command: Command, arguments: tuple[str, ...] = ()) -> dict[str, Any]:
    """``script`` for a string; ``argv`` for a list, or for a program followed by its ``arguments``."""
    if arguments:
        if not isinstance(command, str):
            raise bad("a command must be a string, one list, or a program and its arguments one by one")
        command = [command, *arguments]
    if isinstance(command, str):
        return {"script": script_of(command)}
    usable = type(command) is list or (hasattr(command, "__iter__") and not isinstance(command, (Mapping, AbstractSet)))
    argv = list(command) if usable else []
    try:
        valid = argv and "\0" not in "".join(argv)
    except TypeError:  # a word is not a string
        valid = False
    if not valid:
        raise bad("a command must be a string or a list of at least one string, without NUL")
    return {"argv": argv}


class LargeParams(dict[str, Any]):
    """Parameters that do not fit one message: they are sent after the channel's Open (PROTOCOL §7.8)."""

    def packed(self) -> bytes:
        """The parameters as they are sent."""
        import msgpack

        return bytes(msgpack.packb(dict(self)))


def bounded(params: dict[str, Any], *, may_follow: bool = False) -> dict[str, Any]:
    """Check that ``params`` can be sent: valid text that fits one message, with no more words than the other side accepts.

    With ``may_follow`` they may be larger; then ``LargeParams`` are returned.
    """
    import msgpack

    try:
        size = len(msgpack.packb(params))
    except UnicodeEncodeError:
        raise bad("commands, names and variables must be valid UTF-8", "to run other bytes, write them to a file and run it") from None
    except (TypeError, ValueError, OverflowError) as wrong:
        raise bad(f"a parameter has the wrong type: {wrong}") from None
    hint = "write the script or data to a file with sandbox.files.write() and run that, or give it as input"
    cls, code = (ArgumentsTooLongError, "arguments_too_long") if may_follow else (RequestTooLargeError, "request_too_large")
    most_bytes, most_items = (PARAMS_BYTES, PARAMS_ITEMS) if may_follow else (MESSAGE_PARAMS_BYTES, DECODE_ITEMS)
    items = 0
    for name, value in params.items():
        if isinstance(value, (list, dict, tuple)):
            if name not in _CONTAINERS:
                raise bad(f"{name} cannot be a {type(value).__name__}")
            items = max(items, len(value))
    if size > most_bytes:
        raise cls(code, f"the command and its variables have {size} bytes; the limit is {most_bytes}", hint=hint)
    if items > most_items:
        raise cls(code, f"one request takes at most {most_items} words or variables", hint=hint)
    return LargeParams(params) if size > MESSAGE_PARAMS_BYTES or items > DECODE_ITEMS else params


def check_json(body: dict[str, Any]) -> dict[str, Any]:
    """Check that ``body`` can be sent over REST."""
    import json

    try:
        json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as wrong:
        raise bad(f"the request cannot be encoded as JSON: {wrong}") from None
    return body


def command_params(
    command: Command,
    arguments: tuple[str, ...] = (),
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
    stderr: Stderr = "pipe",
    live: bool = False,
    keep: bool = False,
    ends_sandbox: bool = False,
) -> dict[str, Any]:
    """Open params of a ``command`` channel. ``live`` and ``keep`` are about reading its output, ``ends_sandbox`` is for the command that a
    sandbox was created for (CHANNELS.md)."""
    _stderr_of(stderr)
    if outlive not in ("adopt", "kill", "wait"):
        raise bad("outlive must be 'adopt', 'kill' or 'wait'")
    if spool not in ("block", "tail"):
        raise bad("spool must be 'block' or 'tail'")
    if spool_bytes is not None and (type(spool_bytes) is not int or not 1 <= spool_bytes <= SPOOL_COMMAND_BYTES):
        raise bad(f"spool_bytes must be a number of bytes from 1 to {SPOOL_COMMAND_BYTES}, not {spool_bytes!r:.40}")
    return bounded(
        {
            "id": command_id_of(command_id),
            **command_of(command, arguments),
            **_place(cwd, env, user, login),
            **given(
                timeout_s=seconds(timeout),
                stdin="pipe" if stdin else None,
                outlive=None if outlive == "adopt" else outlive,
                spool=None if spool == "block" else spool,
                spool_bytes=spool_bytes,
                detached=detached or None,
                stderr=None if stderr == "pipe" else stderr,
                live=live or None,
                keep=keep or None,
                ends_sandbox=ends_sandbox or None,
            ),
        },
        may_follow=True,
    )


def _stderr_of(stderr: str) -> str:
    if stderr not in ("pipe", "stdout"):
        raise bad("stderr must be 'pipe', or 'stdout' for one stream in the order of writing")
    return stderr


def _place(cwd: RemotePath | None, env: Mapping[str, str] | None, user: str | int | None, login: bool = False) -> dict[str, Any]:
    """The directory, environment and user of a command, terminal or shell."""
    return given(cwd=None if cwd is None else path_of(cwd), env=environment(env), user=user, login=login or None)


def run_params(script: str, timeout: float | None, default_s: float | None, stdin: bool, stderr: Stderr = "pipe") -> dict[str, Any]:
    """Params of a ``Run`` on a shell. ``default_s`` is the client's time limit of commands."""
    params: dict[str, Any] = {"script": script_of(script)}
    if stderr != "pipe":
        params["stderr"] = _stderr_of(stderr)
    if timeout is not None or default_s is not None:
        params |= given(timeout_s=seconds(time_limit(timeout, default_s)))
    if stdin:
        params["stdin"] = "pipe"
    return params if len(script) <= _SHORT_BYTES and script.isascii() else bounded(params)


class ClusterOptions(TypedDict, total=False):
    """The options of ``create_sandbox`` for clusters, with the names and values of REST (``POST /sandboxes`` in the OpenAPI document)."""

    gpu: int
    """Number of graphics cards. Short for ``resources={"nvidia.com/gpu": …}``."""
    resources: Mapping[str, int]
    """Number of each extended resource, by its name."""
    pids: int
    """Limit of processes and threads at the same time."""
    volumes: Sequence[Mapping[str, Any]]
    """``{"kind": "empty"|"claim"|"secret"|"config", "path": …, "source": …, "size": …, "in_memory": …, "read_only": …}``."""
    node_selector: Mapping[str, str]
    """Labels that the sandbox's node must have."""
    tolerations: Sequence[Mapping[str, Any]]
    """``{"key": …, "operator": …, "value": …, "effect": …, "seconds": …}``."""
    runtime_class: str
    """Name of a ``RuntimeClass`` of the cluster."""
    priority_class: str
    """Name of a ``PriorityClass`` of the cluster."""
    service_account: str
    """Name of the service account of the pod, whose token programs in the sandbox can read."""
    image_pull_secrets: Sequence[str]
    """Names of secrets for a private registry."""
    user: int
    """Numeric id of the user that processes run as."""
    user_group: int
    """Numeric id of that user's group."""
    architecture: Literal["amd64", "arm64"]
    """Processor architecture of the node."""


ClusterOptions.__module__ = "holdfast"  # where it is imported from


def cluster_body(options: ClusterOptions) -> dict[str, Any]:
    """The fields for the given options. Raises ``InvalidArgumentError`` for an unknown one, with the name of a similar one."""
    unknown = sorted(set(options) - set(ClusterOptions.__annotations__))
    if unknown:
        from holdfast._suggestions import no_argument

        others = ("ready_timeout_s", "sandbox_id", "exist_ok", "block_network", "network")
        raise no_argument("SandboxClient", "create_sandbox", unknown[0], ["image", *_CREATE, *others, *ClusterOptions.__annotations__])
    return {name: plain(value) for name, value in options.items() if value is not None}


def events_query(
    sandboxes: Sequence[str],
    labels: Mapping[str, str] | None,
    group: str | None,
    kinds: Sequence[str] = (),
    activity: bool = False,
    usage_s: float | None = None,
    files: str = "",
    pulls: bool = False,
) -> list[tuple[str, str]]:
    """The query of ``GET /events``."""
    activity = activity or usage_s is not None or bool(files)
    query = [("sandbox", sandbox_id_of(id_)) for id_ in words_of([sandboxes] if isinstance(sandboxes, str) else sandboxes, "sandboxes")]
    query += label_query(labels)
    query += [] if group is None else [("group", group_name_of(group))]
    query += [("kind", kind) for kind in words_of([kinds] if isinstance(kinds, str) else kinds, "kinds")]
    query += [("activity", "true")] if activity else []
    query += [("usage_s", f"{usage_s:g}")] if usage_s is not None else []
    query += [("files", files)] if files else []
    return [*query, ("pulls", "true")] if pulls else query


def network_body(network: Mapping[str, Any]) -> dict[str, Any]:
    """The field ``network`` of REST: what a sandbox may reach."""
    if not isinstance(network, Mapping):
        raise bad('network must be a map, as {"mode": "internet"}')
    return check_json({str(name): plain(value) for name, value in network.items()})


def _quantity(value: Any, parse: Callable[..., object], *name: str) -> Any:
    """Check that the service can read ``value``."""
    try:
        parse(value, *name)
    except HoldfastError as wrong:
        raise typed(wrong) from None
    return value


def _flag(value: object, name: str) -> bool:
    if not isinstance(value, bool):
        raise bad(f"{name} must be True or False, not {value!r:.40}")
    return value


def _entrypoint(value: object) -> bool | list[str] | None:
    if isinstance(value, bool):
        return value or None
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)) and value and all(isinstance(word, str) for word in value):
        return list(value)
    raise bad("entrypoint must be True for the image's own, or a list of strings: a program and its arguments")


def _ulimits(value: object) -> dict[str, Any] | None:
    if not isinstance(value, Mapping):
        raise bad('ulimits must be a map, as {"nofile": (1024, 4096), "core": 0}')
    return {str(name): plain(limits) for name, limits in value.items()} or None


_CREATE: Mapping[str, Callable[[Any], Any]] = {
    "cpu": lambda value: _quantity(value, parse_cpu),
    "memory": lambda value: _quantity(value, parse_bytes),
    "disk": lambda value: _quantity(value, parse_bytes, "disk"),
    "env": lambda value: environment(value) or None,
    "labels": lambda value: labels_of(value) or None,
    "lifetime_s": lambda value: seconds(value, "lifetime_s", "leave it out for the service's default"),
    "idle_timeout_s": lambda value: seconds(value, "idle_timeout_s"),
    "heartbeat_timeout_s": lambda value: seconds(value, "heartbeat_timeout_s"),
    "group": group_name_of,
    "entrypoint": _entrypoint,
    "ulimits": _ulimits,
    "shm_size": lambda value: _quantity(value, parse_bytes, "shm_size"),
    "record": lambda value: _flag(value, "record") or None,
}
"""The options of a create that have the same name in REST, and how each is converted; None is not sent."""


def create_body(
    image: str,
    *,
    sandbox_id: str,
    exist_ok: bool = True,
    ready_timeout_s: float | None = None,
    block_network: bool = True,
    network: Mapping[str, Any] | None = None,
    group_lease: str = "",
    cluster: ClusterOptions | None = None,
    **options: Any,
) -> dict[str, Any]:
    """The body of ``POST /sandboxes``; ``options`` are those of ``_CREATE``."""
    if not isinstance(image, str) or not image or not image.isprintable():
        raise bad("image must be the name of an image")
    if not isinstance(block_network, bool):  # of None or 0 the network would be open
        raise bad(f"block_network must be True or False, not {block_network!r:.40}", "leave it out for a sandbox without a network")
    body = {
        "image": image,
        "sandbox_id": sandbox_id,
        **({"block_network": block_network} if network is None else {"network": network_body(network)}),
        **({} if exist_ok else {"exist_ok": False}),
        "wait": True,
        "timeout": seconds(ready_timeout_s, "ready_timeout_s", "leave it out to wait for an hour") or READY_TIMEOUT_S,
        **given(group_lease=group_lease or None, **{name: _CREATE[name](value) for name, value in options.items() if value is not None}),
        **cluster_body(cluster or {}),
    }
    return check_json(body)


def shell_params(
    name: str | None,
    shell: str,
    cwd: RemotePath | None,
    env: Mapping[str, str] | None,
    user: str | int | None,
    size: tuple[int, int] | None = None,
) -> dict[str, Any]:
    """Open params of a ``shell`` channel; ``size`` is the size of its terminal, None for a shell without one."""
    if shell not in ("auto", "bash", "sh"):
        raise bad("shell must be 'auto', 'bash' or 'sh'")
    return bounded(
        {
            **given(name=name_of(name, "name"), shell=None if shell == "auto" else shell),
            **_place(cwd, env, user),
            **({} if size is None else {"tty": True, "rows": size[0], "cols": size[1]}),
        },
        may_follow=True,
    )


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

        script_of(command)
        if len(command) > _SPLIT_CHARACTERS:
            message = f"a command of over {_SPLIT_CHARACTERS} characters is not split into words"
            raise ArgumentsTooLongError("arguments_too_long", message, hint="give the program and its arguments as a list")
        try:
            command = shlex.split(command)
        except ValueError as wrong:
            raise bad(f"the command cannot be split into words: {wrong}") from None
    return bounded(
        {
            "rows": rows,
            "cols": cols,
            **given(name=name_of(name, "name")),
            **({} if command is None else command_of(command)),
            **_place(cwd, env, user, login),
        },
        may_follow=True,
    )
