"""``filesystem.Filesystem``: E2B's procedures for files and directories.

Owns the translation of messages. As E2B's, they may change every file of the sandbox, and what they create belongs to the requested user. A
symbolic link is shown with the type and mode of what it leads to. The content of files is in ``transfers``, watching in ``watching``.
"""

from __future__ import annotations

import posixpath
from typing import Any, Final

from holdfast_wire.errors import HoldfastError
from starlette.requests import Request

from gateway.audit.lines import masked_path
from gateway.faces.table import note, parts
from gateway.model.records import Record
from gateway.use_cases import accounts as account_lookup
from gateway.use_cases import files
from gateway.use_cases.accounts import Accounts
from gateway.use_cases.agent_channel import request as ask
from gateway.use_cases.service import Gateway

from .actors import Actor, actor_of, text_of
from .connect_rpc import Message, unary
from .entries import METADATA, entry_info
from .targets import ready_record, requested_user

_DEPTH_MOST: Final = 2048
_LINKS: Final = 40
"""So many links are followed from one to the next, as by the kernel (path_resolution(7))."""


class Tree:
    """The files of one request's sandbox, as its user names them."""

    def __init__(self, gateway: Gateway, record: Record, accounts: Accounts, actor: Actor) -> None:
        self.gateway = gateway
        self.record = record
        self.accounts = accounts
        self.actor = actor

    async def call(self, operation: str, path: str, **more: Any) -> dict[str, Any]:
        """An operation of the agent; the fields of its answer. Raises what the agent answers."""
        params = {"op": operation, "path": path, **self.actor.owner(), **more}
        return await ask(self.gateway, self.record, "fs", params)

    async def stat(self, path: str, *, follow: bool = True) -> dict[str, Any]:
        entry = (await self.call("stat", path, follow=follow, xattrs=METADATA)).get("entry")
        return entry if isinstance(entry, dict) else {}

    async def info(self, path: str) -> Message:
        """The entry at a path, of a symbolic link the link itself. Raises ``file_not_found``."""
        return await self.shown(await self.stat(path, follow=False))

    async def shown(self, entry: dict[str, Any]) -> Message:
        """An entry that the agent has reported."""
        return entry_info(entry, self.accounts, await self._target(entry) if entry.get("type") == "symlink" else None)

    async def _target(self, link: dict[str, Any]) -> dict[str, Any] | None:
        """What a link leads to, None if that does not exist."""
        at = link
        for _ in range(_LINKS):
            path, target = at.get("path"), at.get("target")
            if not isinstance(path, str) or not isinstance(target, str) or not target:
                return None
            try:
                at = await self.stat(posixpath.normpath(posixpath.join(posixpath.dirname(path), target)), follow=False)
            except HoldfastError as error:
                if error.code in ("file_not_found", "not_a_directory", "invalid_path", "permission_denied"):
                    return None
                raise
            if at.get("type") != "symlink":
                return at
        return None


async def tree_of(request: Request, *, user: str | None = None) -> Tree:
    """The files of the requested sandbox. ``user`` is the requested one; None: the one that ``Authorization`` names."""
    gateway, _ = parts(request)
    record = await ready_record(request)
    accounts = await account_lookup.users_and_groups(gateway, record)
    return Tree(gateway, record, accounts, actor_of(accounts, requested_user(request) if user is None else user))


async def _stat(request: Request, message: Message) -> Message:
    tree = await tree_of(request)
    return {"entry": await tree.info(tree.actor.path(text_of(message, "path", required=False)))}


async def _list_dir(request: Request, message: Message) -> Message:
    tree = await tree_of(request)
    path = tree.actor.path(text_of(message, "path", required=False))
    depth = message.get("depth") or 1
    if type(depth) is not int or not 0 < depth < 2**32:
        raise HoldfastError("invalid_argument", "depth must be a number above 0", hint="")
    found = await files.list_tree(tree.gateway, tree.record, path, depth=min(depth, _DEPTH_MOST), xattrs=METADATA)
    return {"entries": [await tree.shown(entry) for entry in found]}


async def _make_dir(request: Request, message: Message) -> Message:
    tree = await tree_of(request)
    path = tree.actor.path(text_of(message, "path"))
    note(request, path=masked_path(path))
    try:
        made = await tree.call("mkdir", path, exist_ok=False)
    except HoldfastError as error:
        if error.code == "file_exists" and (await tree.stat(path)).get("type") != "directory":
            raise HoldfastError("not_a_directory", f"path already exists but it is not a directory: {path[:200]}", hint="") from None
        raise
    return {"entry": await tree.info(path)} if made else {}


async def _move(request: Request, message: Message) -> Message:
    tree = await tree_of(request)
    source, to = (tree.actor.path(text_of(message, name)) for name in ("source", "destination"))
    note(request, path=masked_path(source), to=masked_path(to))
    await tree.call("move", source, to=to, overwrite=True, parents=True)
    return {"entry": await tree.info(to)}


async def _remove(request: Request, message: Message) -> Message:
    tree = await tree_of(request)
    path = tree.actor.path(text_of(message, "path"))
    note(request, path=masked_path(path))
    await tree.call("remove", path, recursive=True, missing_ok=True)
    return {}


stat = unary(_stat)
list_dir = unary(_list_dir)
make_dir = unary(_make_dir)
move = unary(_move)
remove = unary(_remove)
