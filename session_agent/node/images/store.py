"""The image store: layers by digest, images by name, all under one directory.

Owns `$HOLDFAST_DATA/images`: `layers/<sha256>` (unpacked, shared, never written again), `index/*.json` (one per name), `skeleton` and
`host` (created again at each start), `tmp` (emptied at start). One process, the node, uses it; changes are serial and appear by rename, so
a crash leaves an image whole or absent.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import shutil
import stat
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from holdfast_wire.errors import HoldfastError

from session_agent.node.images import export, formats, host, links, names, pull, skeleton
from session_agent.node.images.layers import NOBODY, LayerLimits
from session_agent.node.images.record import ImageRecord
from session_agent.node.images.spec import ImageSpec
from session_agent.node.images.upper import Copied, content_digest
from session_agent.node.kernel.namespaces import IdMap
from session_agent.node.kernel.rootfs import MAX_LAYERS

log = logging.getLogger(__name__)
Digests = list[str]
_HELD = "~"
"""The first character of the names of images that only a paused sandbox has: no image's name may begin with it."""
_MOST_LAYERS = MAX_LAYERS - len(skeleton.LAYERS) - 1


class ImageStore:
    """`in_use` returns whether a sandbox uses an image's digest, `layer_in_use` whether one uses a layer's directory."""

    def __init__(self, directory: str, fallback: str | None, limits: LayerLimits | None = None) -> None:
        self._directory = directory
        self._fallback = fallback
        self._limits = limits or LayerLimits()
        self._ids: IdMap | None = None
        self._records: dict[str, ImageRecord] = {}
        self._changing = asyncio.Lock()
        self._reading = list[str]()
        """Layers that are being exported."""
        self.before_remove: Callable[[str], Awaitable[None]] | None = None
        self.in_use: Callable[[str], bool] = lambda digest: False
        self.layer_in_use: Callable[[str], bool] = lambda path: False

    def open(self, ids: IdMap | None = None) -> None:
        """Remove leftovers, create the machine's own layers, and read the index.

        Blocks; called once, before use. *ids*: the ids to which the owners of all files are changed, on machines whose kernel cannot map
        ids.
        """
        self._ids = ids
        os.makedirs(self._directory, exist_ok=True)
        os.chmod(self._directory, 0o700)
        for name in ("layers", "index", "tmp"):
            os.makedirs(self._path(name), mode=0o700, exist_ok=True)
        for leftover in os.listdir(self._path("tmp")):
            shutil.rmtree(self._path("tmp", leftover), ignore_errors=True)
        for name in skeleton.LAYERS:
            skeleton.build(self._path(name), name)
        host.build(self._path(host.NAME))
        for name in (*skeleton.LAYERS, host.NAME):
            self._shift_owners(self._path(name))
        for name in os.listdir(self._path("index")):
            try:
                with open(self._path("index", name), encoding="utf-8") as file:
                    record = ImageRecord(**json.load(file))
            except (OSError, ValueError, TypeError) as error:
                log.warning("an image has to be imported again: its record %s cannot be read: %s", name, error)
                continue
            if all(os.path.isdir(self._layer(digest)) for digest in record.layers):
                self._records[record.name] = record
            else:
                log.warning("the image %s has to be imported again: one of its layers is missing", record.name)
        self._collect_layers()

    def list(self) -> list[dict[str, Any]]:
        machine = {"name": host.NAME, "digest": "host", "size_bytes": 0, "created": ""}
        return [machine, *(record.to_map() for name, record in sorted(self._records.items()) if not name.startswith(_HELD))]

    def resolve(self, name: str) -> ImageSpec:
        """The facts about an image that a sandbox needs. Raises HoldfastError(image_not_found, invalid_argument)."""
        if _is_host(name):
            return host.spec(self._path("host"))
        record = self._records.get(names.normalise(name)) or self._by_digest(name)
        if record is None:
            if self._fallback == host.NAME:
                return host.spec(self._path("host"))
            raise HoldfastError("image_not_found", f"there is no image {name} on this machine")
        return self._spec(record)

    def _spec(self, record: ImageRecord) -> ImageSpec:
        # a layer may occur twice (often an empty one); only the topmost occurrence has an effect, and overlay accepts a layer only once
        layers = dict.fromkeys(self._layer(digest) for digest in reversed(record.layers))
        machine = host.spec(self._path(host.NAME)) if record.base == host.NAME else None
        below = machine.layers if machine else (self._path(skeleton.BASE),)
        return ImageSpec(
            digest=record.digest,
            layers=(self._path(skeleton.TOP), *layers, *below),
            trees=machine.trees if machine else (),
            hidden=machine.hidden if machine else (),
            env=record.env,
            workdir=record.workdir,
            user=record.user,
            entrypoint=tuple(record.entrypoint),
        )

    async def import_path(self, path: str, name: str) -> dict[str, Any]:
        """Import an OCI layout or archive, a docker archive, a root tar or a root directory. An existing image *name* is replaced."""
        wanted = self._importable_name(name)
        async with self._changing:
            return await self._keep(os.path.abspath(path), wanted)

    async def pull(self, name: str) -> dict[str, Any]:
        """Fetch *name* from its registry with skopeo. Raises HoldfastError(image_pull_failed, unsupported)."""
        wanted = self._importable_name(name)
        async with self._changing:
            target = self._fresh()
            try:
                await pull.fetch(wanted, target)
                return await self._keep(target, wanted)
            finally:
                await asyncio.to_thread(shutil.rmtree, target, True)

    async def _keep(self, path: str, name: str) -> dict[str, Any]:
        return await self._add(await asyncio.to_thread(self._import, path, name))

    async def _add(self, record: ImageRecord) -> dict[str, Any]:
        """Write the record of an image whose layers are complete; it replaces the image of the same name."""
        await asyncio.to_thread(self._write, record)
        replaced = self._records.get(record.name)
        self._records[record.name] = record
        if replaced and replaced.digest != record.digest and self.before_remove:
            await self.before_remove(replaced.digest)
        await asyncio.to_thread(self._collect_layers)
        return record.to_map()

    async def commit(
        self, image: ImageSpec, name: str | None, copy: Callable[[str, str], Awaitable[Copied]], *, holder: str = ""
    ) -> dict[str, Any]:
        """Store what a sandbox of *image* has written as an image of its own: a layer above those of *image*.

        *copy* fills an empty directory, and may use a second one on the same file system. Without *name* the image is named by its digest;
        with *holder*, the id of a paused sandbox, it is no image of users and only ``held`` finds it. Raises HoldfastError and OSError, and
        then leaves nothing behind.
        """
        wanted = _HELD + holder if holder else None if name is None else self._importable_name(name)
        below, base = self._layers_of(image)
        if len(below) >= _MOST_LAYERS:
            raise HoldfastError("image_invalid", f"a snapshot of this sandbox would have more than {_MOST_LAYERS} layers")
        draft, pool = self._fresh(), self._fresh()
        try:
            copied = await copy(draft, pool)
            layer = await asyncio.to_thread(content_digest, draft)
            async with self._changing:
                if os.path.isdir(self._layer(layer)):  # the same content, from a sandbox of the same image or of another one
                    await asyncio.to_thread(shutil.rmtree, draft)
                else:
                    os.rename(draft, self._layer(layer))
                record = ImageRecord(
                    name=wanted or "",
                    digest="",
                    layers=[*below, layer],
                    size_bytes=copied.size_bytes,
                    created=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
                    env=image.env,
                    workdir=image.workdir,
                    user=image.user,
                    entrypoint=[*image.entrypoint],
                    base=base,
                    parent=image.digest,
                )
                digest = record.content_digest()
                record = dataclasses.replace(record, digest=digest, name=wanted or names.normalise(digest))
                return await self._add(record)
        finally:
            for path in (draft, pool):
                await asyncio.to_thread(shutil.rmtree, path, True)

    def _layers_of(self, image: ImageSpec) -> tuple[Digests, str]:
        """The digests of an image's own layers, lowest first, and ``host`` where they lie above the machine's image."""
        suffix = len(self._layer("")) - len(self._path("layers", ""))
        folder = self._path("layers", "")
        own = [path.removeprefix(folder) for path in reversed(image.layers) if path.startswith(folder)]
        return [f"sha256:{name[: len(name) - suffix]}" for name in own], host.NAME if image.trees else ""

    async def tag(self, name: str, other: str) -> dict[str, Any]:
        """Give an image a second name, which costs nothing. Raises HoldfastError(image_not_found)."""
        if _is_host(name):
            raise HoldfastError("invalid_argument", "the host image is this machine's and cannot have another name")
        wanted = self._importable_name(other)
        async with self._changing:
            record = self._records.get(names.normalise(name)) or self._by_digest(name)
            if record is None:
                raise HoldfastError("image_not_found", f"there is no image {name} on this machine")
            return await self._add(dataclasses.replace(record, name=wanted))

    async def export(self, name: str, path: str) -> None:
        """Write an image as an OCI archive to the new file *path*. Raises HoldfastError(image_not_found, unsupported) and OSError."""
        record = None if _is_host(name) else self._records.get(names.normalise(name)) or self._by_digest(name)
        if record is None and not _is_host(name):
            raise HoldfastError("image_not_found", f"there is no image {name} on this machine")
        if record is None or record.base:
            hint = "export what it adds with `holdfast cp`, or begin with an image that was imported or pulled"
            raise HoldfastError("unsupported", f"{name} lies above this machine's own files, which are not exported", hint=hint)
        layers = [self._layer(digest) for digest in record.layers]
        self._reading += layers
        try:
            await asyncio.to_thread(self._export, record, layers, path)
        finally:
            for layer in layers:
                self._reading.remove(layer)

    def _export(self, record: ImageRecord, layers: Sequence[str], path: str) -> None:
        config = {
            "Env": [f"{key}={value}" for key, value in record.env.items()],
            "WorkingDir": record.workdir,
            "User": record.user,
            "Entrypoint": record.entrypoint,
        }
        with open(path, "xb") as file:
            try:
                export.write_archive(file, layers, config, record.name, record.created, self._ids)
            except BaseException:
                os.unlink(path)
                raise

    def held(self, holder: str) -> ImageSpec:
        """The image with the files of a paused sandbox. Raises HoldfastError(image_not_found)."""
        record = self._records.get(_HELD + holder)
        if record is None:
            raise HoldfastError("image_not_found", f"the files of the paused sandbox {holder} are missing")
        return self._spec(record)

    async def release_held(self, holders: Sequence[str] | None = None, *, but: Collection[str] = ()) -> None:
        """Remove the images of these paused sandboxes, or of all that are not in *but*."""
        async with self._changing:
            for key in [key for key in self._records if key.startswith(_HELD)]:
                holder = key.removeprefix(_HELD)
                if holder in holders if holders is not None else holder not in but:
                    del self._records[key]
                    os.unlink(self._index_file(key))
            await asyncio.to_thread(self._collect_layers)

    async def remove(self, name: str) -> None:
        """Remove an image. Raises HoldfastError(image_not_found, image_in_use).

        A snapshot may be removed while sandboxes use it: its layers stay until the last of them has ended.
        """
        if _is_host(name):
            raise HoldfastError("invalid_argument", "the host image is this machine's and cannot be removed")
        wanted = names.normalise(name)
        async with self._changing:
            record = self._records.get(wanted)
            if record is None:
                raise HoldfastError("image_not_found", f"there is no image {name} on this machine")
            others = any(other.digest == record.digest for other in self._records.values() if other is not record)
            if not record.parent and not others and self.in_use(record.digest):
                raise HoldfastError("image_in_use", f"sandboxes are using {name}")
            # From here on no create finds the image, and creates that found it are counted as users.
            del self._records[wanted]
            os.unlink(self._index_file(wanted))
            if self.before_remove:
                await self.before_remove(record.digest)
            await asyncio.to_thread(self._collect_layers)

    def _import(self, path: str, name: str) -> ImageRecord:
        workspace = self._fresh()
        try:
            with formats.open_image(path, workspace, self._limits) as source:
                if len(source.layers) > _MOST_LAYERS:
                    raise HoldfastError("image_invalid", f"more than {_MOST_LAYERS} layers")
                for layer in source.layers:
                    self._unpack(layer)
                folders = [self._layer(layer.digest) for layer in reversed(source.layers)]
                link_of = links.link_in_layers(folders)
                volumes = _volume_layer(["/".join(links.without_links(path.split("/"), link_of)) for path in source.volumes])
                for layer in volumes:
                    self._unpack(layer)
                layers = [*volumes, *source.layers]
                record = ImageRecord(
                    name=name,
                    digest=source.digest,
                    layers=[layer.digest for layer in layers],
                    size_bytes=sum(_tree_size(self._layer(layer.digest)) for layer in source.layers),
                    created=source.created,
                    env=source.env,
                    workdir=source.workdir,
                    user=source.user,
                    entrypoint=source.entrypoint,
                )
        finally:
            shutil.rmtree(workspace, ignore_errors=True)
        return record

    def _write(self, record: ImageRecord) -> None:
        draft = self._path("tmp", f"{os.urandom(8).hex()}.json")
        with open(draft, "w", encoding="utf-8") as file:
            json.dump(asdict(record), file)
            file.flush()
            os.fsync(file.fileno())
        os.rename(draft, self._index_file(record.name))

    def _unpack(self, layer: formats.Layer) -> None:
        if os.path.isdir(self._layer(layer.digest)):
            return
        unpacked = self._fresh()
        try:
            layer.unpack(unpacked)
            self._shift_owners(unpacked)
            os.rename(unpacked, self._layer(layer.digest))
        finally:
            shutil.rmtree(unpacked, ignore_errors=True)

    async def release(self, image: ImageSpec) -> None:
        """A sandbox of *image* has ended: if it was the last of an image that was removed, its layers are removed too."""
        if image.digest != host.NAME and not any(record.digest == image.digest for record in self._records.values()):
            async with self._changing:
                await asyncio.to_thread(self._collect_layers)

    def _collect_layers(self) -> None:
        wanted = {self._layer(digest) for record in self._records.values() for digest in record.layers}
        for name in os.listdir(self._path("layers")):
            path = self._path("layers", name)
            if (
                path not in wanted and path not in self._reading and not self.layer_in_use(path)
            ):  # a running sandbox may still use the layers of a replaced image
                shutil.rmtree(path, ignore_errors=True)

    def _by_digest(self, name: str) -> ImageRecord | None:
        digest = name if name.startswith("sha256:") else name.partition("@")[2]
        found = (record for name, record in self._records.items() if record.digest == digest and not name.startswith(_HELD))
        return next(found, None) if digest else None

    @staticmethod
    def _importable_name(name: str) -> str:
        if _is_host(name):
            raise HoldfastError("invalid_argument", "the name host is reserved for this machine's own image")
        return names.normalise(name)

    def _layer(self, digest: str) -> str:
        suffix = f"+{self._ids.base}" if self._ids else ""
        return self._path("layers", digest.removeprefix("sha256:") + suffix)

    def _shift_owners(self, path: str) -> None:
        if self._ids is None:
            return
        shifted: set[int] = set()
        items = [path]
        for directory, folders, files in os.walk(path):
            items += [os.path.join(directory, name) for name in (*folders, *files)]
        for item in items:
            status = os.lstat(item)
            if status.st_ino not in shifted:  # a hard link to a file that was changed already
                shifted.add(status.st_ino)
                _give(item, status, self._ids)

    def _index_file(self, name: str) -> str:
        return self._path("index", hashlib.sha256(name.encode()).hexdigest() + ".json")

    def _fresh(self) -> str:
        path = self._path("tmp", os.urandom(8).hex())
        os.mkdir(path, 0o755)
        return path

    def _path(self, *parts: str) -> str:
        return os.path.join(self._directory, *parts)


def _volume_layer(volumes: Sequence[str]) -> list[formats.Layer]:
    """A lowest layer with the directories that an image declares as volumes; directories of the image itself hide them."""
    if not volumes:
        return []
    digest = hashlib.sha256("\0".join(["volumes", *volumes]).encode()).hexdigest()
    return [formats.Layer(f"sha256:{digest}", lambda target: skeleton.fill_directories(target, volumes))]


def _give(item: str, status: os.stat_result, ids: IdMap) -> None:
    """Change the owner, and restore what the kernel removes in doing so: set-id bits and file capabilities."""
    uid, gid = (ids.outside(number) for number in (status.st_uid, status.st_gid))
    capability = b""
    if stat.S_ISREG(status.st_mode):
        with contextlib.suppress(OSError):
            capability = os.getxattr(item, "security.capability")
    os.chown(item, ids.base + NOBODY if uid is None else uid, ids.base + NOBODY if gid is None else gid, follow_symlinks=False)
    if not stat.S_ISLNK(status.st_mode):
        os.chmod(item, stat.S_IMODE(status.st_mode))
    if capability:
        os.setxattr(item, "security.capability", capability)


def _tree_size(path: str) -> int:
    total = 0
    for directory, _, files in os.walk(path):
        for name in files:
            total += os.lstat(os.path.join(directory, name)).st_size
    return total


def _is_host(name: str) -> bool:
    """Whether *name*, in any form, is that of the machine's own image: lists could not distinguish it from an image `host:latest`.

    Raises as `normalise`.
    """
    return names.normalise(name) == names.normalise(host.NAME)
