"""The data folder of one stack: its lock, secret, development key, sockets and the environment of its processes.

Owns the content of `$HOLDFAST_DATA` before the first process starts. The node and Redis own their own folders in it.
A folder holds one stack at a time: the lock is held by every process of the runner and vanishes with the last of them.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from holdfast_server.errors import UpError
from holdfast_server.layout import SERVICES

_SOCKET_PATH_LIMIT = 100  # Linux takes 107 bytes; the rest is room for a suffix
_DEV_OWNER = "dev"
_FOLDERS = frozenset({"logs", "run", "redis"})
_SCOPES = "scopes=read,create,exec,files,images,admin"
"""The development key is the operator's: who may read it may change the keys file too."""
_FILES = frozenset({"lock", "secret", "other-secrets", "keys", "env", "runner.out", "tenants.json"})


class DataDir:
    """The paths of one stack's files. All are absolute."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.env_file = root / "env"
        self.secret_file = root / "secret"
        self.keys_file = root / "keys"
        self.logs = root / "logs"
        self.pids = root / "run"
        self.redis = root / "redis"
        sockets = _socket_dir(root)
        self.redis_socket = sockets / "redis.sock"
        self.node_socket = sockets / "node.sock"


def open_data_dir(path: Path) -> DataDir:
    """Create the folder and its parts.

    Raises UpError if it cannot be written, or if it contains other files, because a start deletes parts of it.
    """
    root = path.expanduser().absolute()
    try:
        root.mkdir(parents=True, exist_ok=True)
        unknown = [] if (root / "lock").exists() and all((root / name).is_dir() for name in _FOLDERS) else _unknown(root)
        if unknown:
            some = f"{', '.join(unknown[:3])}{', …' if unknown[3:] else ''}"
            raise UpError(
                f"{root} is not a data folder of a stack, and it is not empty: it contains {some}",
                hint="set --data or HOLDFAST_DATA to a folder that is empty or does not exist yet",
                code="directory_not_empty",
            )
        for name in _FOLDERS:
            (root / name).mkdir(exist_ok=True, mode=0o700)
    except OSError as error:
        hint = "set --data or HOLDFAST_DATA to a folder you may write"
        raise UpError(f"cannot create the data folder {root}", hint=hint, cause=error) from error
    return DataDir(root)


def _unknown(root: Path) -> list[str]:
    """The entries that neither a stack nor an interrupted start creates. `env` may be a folder of the user."""
    ours = [*(path for path in map(root.joinpath, _FILES) if path.is_file()), root / "demo"]
    ours += [path for path in map(root.joinpath, _FOLDERS) if path.is_dir() and not any(path.iterdir())]
    return sorted(path.name for path in {*root.iterdir()} - {*ours})


@contextlib.contextmanager
def writing(data: DataDir) -> Iterator[None]:
    """Convert errors of writing below the folder to an UpError with the reason."""
    try:
        yield
    except OSError as error:
        hint = "free space there, or make the folder your own, or set --data or HOLDFAST_DATA to another folder"
        raise UpError(f"cannot write in the data folder {data.root}", hint=hint, cause=error) from error


def _socket_dir(root: Path) -> Path:
    """The folder itself, or a private one with a short path if its own path is too long for a Unix socket."""
    if len(os.fsencode(root / "redis.sock")) <= _SOCKET_PATH_LIMIT:
        return root
    base = Path(os.environ.get("XDG_RUNTIME_DIR") or "/tmp")
    short = base / f"holdfast-{hashlib.sha256(os.fsencode(root)).hexdigest()[:12]}"
    shorter = "set --data or HOLDFAST_DATA to a folder with a shorter path"
    try:
        short.mkdir(mode=0o700, exist_ok=True)
        status = short.lstat()
    except OSError as error:
        hint = f"{shorter}, or XDG_RUNTIME_DIR to one you may write"
        raise UpError(f"cannot create the folder of the sockets {short}", hint=hint, cause=error) from error
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise UpError(f"{short} belongs to another user", hint=shorter, code="permission_denied")
    return short


def lock(data: DataDir) -> int:
    """Lock the folder; the lock is held until the last copy of the returned descriptor is closed.

    Raises UpError if it is locked already.
    """
    descriptor = os.open(data.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise UpError(
            f"another stack (process {holder}) runs in {data.root}",
            hint="end that one first, or choose another folder: holdfast up --data .holdfast-2 --port 8766",
            code="in_use",
        ) from error
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def prepare(data: DataDir, url: str) -> str:
    """Write secret, keys and `env`, and remove the files of an earlier run. Returns the development key."""
    if not data.secret_file.exists():
        _write_private(data.secret_file, secrets.token_hex(32) + "\n")
    key = _dev_key(data)
    _write_private(data.env_file, f"HOLDFAST_URL={url}\nHOLDFAST_API_KEY={key}\n")
    # Every sandbox of an earlier run ended with it, so its records are out of date (decisions/0003-redis-of-one-run.md).
    shutil.rmtree(data.redis, ignore_errors=True)
    data.redis.mkdir(mode=0o700)
    for stale in (*data.pids.iterdir(), data.redis_socket):
        stale.unlink(missing_ok=True)
    return key


def _dev_key(data: DataDir) -> str:
    """The key in the previous `env` if it is still valid, else a new one."""
    lines = data.keys_file.read_text() if data.keys_file.exists() else ""
    key = read_env(data.env_file).get("HOLDFAST_API_KEY", "")
    if key and hashlib.sha256(key.encode()).hexdigest() in lines.split():
        return key
    key = "hf_" + secrets.token_hex(16)
    _write_private(data.keys_file, f"{lines}{_DEV_OWNER} {hashlib.sha256(key.encode()).hexdigest()} {_SCOPES}\n")
    return key


def read_env(path: Path) -> dict[str, str]:
    """NAME=value lines as a map; empty if the file does not exist."""
    if not path.exists():
        return {}
    pairs = (line.partition("=") for line in path.read_text().splitlines())
    return {name.strip(): value.strip() for name, separator, value in pairs if separator}


def child_environment(data: DataDir, port: int, base: dict[str, str]) -> dict[str, str]:
    """The environment of the processes of the stack: `base`, with this stack's addresses."""
    environment = {name: value for name, value in base.items() if name not in {"HOLDFAST_URL", "HOLDFAST_API_KEY"}}
    environment.update(
        HOLDFAST_DATA=str(data.root),
        HOLDFAST_KEYS_FILE=str(data.keys_file),
        HOLDFAST_NODE_SOCKET=os.path.abspath(base.get("HOLDFAST_NODE_SOCKET") or data.node_socket),
        HOLDFAST_REDIS_SOCKET=str(data.redis_socket),
        HOLDFAST_SECRET_FILE=str(data.secret_file),
        # This environment's programs first, such as the redis-server of an installed wheel.
        PATH=os.pathsep.join([str(Path(sys.prefix) / "bin"), base.get("PATH", os.defpath)]),
        PORT=str(port),
        PYTHONUNBUFFERED="1",
        PYTHONPATH=os.pathsep.join(filter(None, [str(SERVICES or ""), base.get("PYTHONPATH", "")])),
    )
    environment.setdefault("HOLDFAST_REDIS_URL", f"unix://{data.redis_socket}")
    environment.setdefault("HOLDFAST_RUNTIME", "local")
    environment.setdefault("HOLDFAST_PREVIEW_DOMAIN", "preview.localhost")  # browsers find this machine at every name below localhost
    return environment


def _write_private(path: Path, text: str) -> None:
    """Replace a file in one step, readable by its owner only."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    part.replace(path)
