"""The image store: layers by digest, images by name, all under one directory.

Owns `$HOLDFAST_DATA/images`: `layers/<sha256>` (unpacked, shared, never written again), `index/*.json` (one per owner and name), `skeleton`
and `host` (created again at each start), `tmp` (emptied at start), and whose an image is: a name means the caller's own image, else the
shared one; another owner's is indistinguishable from one that does not exist. One process, the node, uses it. Layers are unpacked beside
each other; changes of the index are serial and appear by rename, so a crash leaves an image whole or absent.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import platform
import shutil
import stat
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from holdfast_wire.errors import HoldfastError

from session_agent.node.images import export, formats, host, links, names, pull, skeleton
from session_agent.node.images.configuration import checked_config
from session_agent.node.images.layer_folder import LayerFolder
from session_agent.node.images.layers import NOBODY, LayerLimits
from session_agent.node.images.record import ImageRecord, key_of
from session_agent.node.images.spec import ImageSpec
from session_agent.node.images.upper import Copied, content_digest
from session_agent.node.kernel.namespaces import IdMap
from session_agent.node.kernel.rootfs import MAX_LAYERS

log = logging.getLogger(__name__)
Digests = list[str]
Volumes = list[formats.Layer]
Copy = Callable[[str, str], Awaitable[Copied]]
"""Fills an empty directory; the second one, on the same file system, is for what it needs meanwhile."""
_PULLS = 8
"""Most pulls at a time; further ones wait."""
_PULLS_OF_OWNER = 3
_IMPORTS = 4
"""Most images that are unpacked at a time; further ones wait."""
_REMEMBERED_PULLS = 100
_EXPORTED = 0.75
"""How much of the free room an archive may take."""
_MOST_STEPS = 500
"""Most steps of builds that are kept for each owner."""
_HELD = "~"
"""The first character of the names of images that only a paused sandbox has: no image's name may begin with it."""
_MOST_LAYERS = MAX_LAYERS - len(skeleton.LAYERS) - 1


class ImageStore:
    """`in_use` returns whether a sandbox uses an image's digest, `layer_in_use` whether one uses a layer's directory.

    The *owner* of a method is that of the caller's key; empty, it stands for the operator, who sees and changes only shared images.
    """

    def __init__(
        self, directory: str, fallback: str | None, limits: LayerLimits | None = None, pulls: pull.PullSettings | None = None
    ) -> None:
        self._directory = directory
        self._fallback = fallback
        self._limits = limits or LayerLimits()
        self._ids: IdMap | None = None
        self._records: dict[str, ImageRecord] = {}
        self._changing = asyncio.Lock()
        self._pulls = pulls or pull.PullSettings()
        self._pull_places = asyncio.Semaphore(_PULLS)
        self._places_of: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(_PULLS_OF_OWNER))
        """One entry for each owner; their number is limited by the keys file."""
        self.progress: deque[pull.Progress] = deque(maxlen=_REMEMBERED_PULLS)
        """The latest pulls, the oldest first."""
        self._imports = asyncio.Semaphore(_IMPORTS)
        self._layers = LayerFolder(self._path("layers"), self._path("tmp"))
        self.before_remove: Callable[[str], Awaitable[None]] | None = None
        self.in_use: Callable[[str], bool] = lambda digest: False
        self.layer_in_use: Callable[[str], bool] = lambda path: False

    def open(self, ids: IdMap | None = None) -> None:
        """Remove leftovers, create the machine's own layers, and read the index.

        Blocks; called once, before use. *ids*: the ids to which the owners of all files are changed, on machines whose kernel cannot map
        ids.
        """
        self._ids = ids
        self._layers = LayerFolder(self._path("layers"), self._path("tmp"), f"+{ids.base}" if ids else "")
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
                self._records[record.key] = record
            else:
                log.warning("the image %s has to be imported again: one of its layers is missing", record.name)
        self._collect_layers()

    def list(self, owner: str = "", *, steps: bool = False) -> list[dict[str, Any]]:
        """The owner's images and the shared ones; with *steps* also those that builds keep for later builds."""
        machine = {"name": host.NAME, "digest": "host", "size_bytes": 0, "created": "", "shared": True}
        shown = (record for record in self._visible(owner) if steps or not names.is_step(record.name))
        return [machine, *(record.to_map() for record in sorted(shown, key=lambda record: (record.name, record.owner)))]

    def resolve(self, name: str, owner: str = "") -> ImageSpec:
        """The facts about an image that a sandbox needs. Raises HoldfastError(image_not_found, invalid_argument)."""
        if _is_host(name):
            return host.spec(self._path("host"))
        record = self._find(name, owner)
        if record is None:
            if self._fallback == host.NAME:
                return host.spec(self._path("host"))
            raise _missing(name)
        return self._spec(record)

    def _visible(self, owner: str) -> Iterator[ImageRecord]:
        return (record for key, record in self._records.items() if record.owner in ("", owner) and not key.startswith(_HELD))

    def _find(self, name: str, owner: str) -> ImageRecord | None:
        """The owner's image of this name or digest, else the shared one."""
        wanted = names.normalise(name)
        return self._records.get(key_of(owner, wanted)) or self._records.get(wanted) or self._by_digest(name, owner)

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
            config=record.config,
            origin=record.parent if record.name.startswith(_HELD) else "",
        )

    async def import_path(self, path: str, name: str, owner: str = "") -> dict[str, Any]:
        """Import an OCI layout or archive, a docker archive, a root tar or a root directory. The owner's image *name* is replaced."""
        wanted = self._importable_name(name)
        return await self._keep(os.path.abspath(path), wanted, owner)

    async def pull(self, name: str, owner: str = "") -> dict[str, Any]:
        """Fetch *name* from its registry with skopeo.

        Raises HoldfastError(invalid_argument, image_not_found, image_pull_failed, unsupported).
        """
        wanted = self._importable_name(name)
        self._pulls.registries.check(wanted)
        progress = pull.Progress(names.short_name(wanted), owner)
        self.progress.append(progress)
        try:
            async with self._places_of[owner], self._pull_places:
                target = self._fresh()
                try:
                    progress.state = "fetching"
                    layout = await pull.fetch(wanted, target, self._pulls, progress.add)
                    progress.state = "importing"
                    image = await self._keep(layout, wanted, owner)
                    progress.state = "done"
                    return image
                finally:
                    await asyncio.to_thread(shutil.rmtree, target, True)
        except BaseException as error:
            progress.state, progress.error = "failed", getattr(error, "code", type(error).__name__)
            raise

    async def _keep(self, path: str, name: str, owner: str) -> dict[str, Any]:
        """Import an image. The store's lock is taken only when all of its layers are there."""
        with contextlib.ExitStack() as held:
            try:
                async with self._imports:
                    record = await _whole(asyncio.to_thread(self._import, path, name, held))
            except Exception:
                held.close()  # the layers that were unpacked before the error
                async with self._changing:
                    await asyncio.to_thread(self._collect_layers)
                raise
            async with self._changing:
                return await self._add(dataclasses.replace(record, owner=owner))

    async def _add(self, record: ImageRecord) -> dict[str, Any]:
        """Write the record of an image whose layers are complete; it replaces the image of the same name."""
        await asyncio.to_thread(self._write, record)
        if names.is_step(record.name):
            await self._drop_old_steps(record)
        replaced = self._records.get(record.key)
        self._records[record.key] = record
        if replaced and self.before_remove and not self._has_digest(replaced.digest):
            await self.before_remove(replaced.digest)
        await asyncio.to_thread(self._collect_layers)
        return record.to_map()

    async def _drop_old_steps(self, new: ImageRecord) -> None:
        """Remove the oldest steps of an owner's builds that are too many with *new*."""
        steps = [one for one in self._records.values() if names.is_step(one.name) and one.owner == new.owner and one.key != new.key]
        steps.sort(key=lambda one: one.created)
        for one in steps[: max(0, len(steps) + 1 - _MOST_STEPS)]:
            del self._records[one.key]
            os.unlink(self._index_file(one.key))
            if self.before_remove and not self._has_digest(one.digest):
                await self.before_remove(one.digest)

    async def commit(
        self,
        image: ImageSpec,
        name: str | None,
        copy: Copy,
        *,
        below: Mapping[str, Copy] | None = None,
        holder: str = "",
        owner: str = "",
    ) -> dict[str, Any]:
        """Store what a sandbox of *image* has written as an image of its own: a layer above those of *image*.

        *copy* fills the layer, and *below* those layers of *image* that are not in the store, by what stands for them. Without *name* the
        image is named by its digest; with *holder*, the id of a paused sandbox, it is no image of users and only ``held`` finds it, and its
        layer has a random number instead of a digest, because nothing compares it. Raises HoldfastError and OSError, and then leaves
        nothing behind.
        """
        wanted = _HELD + holder if holder else None if name is None else self._importable_name(name)
        _limit_layers(image)
        layers, drafts, pools, size_bytes = Digests(), dict[str, str](), list[str](), 0
        try:
            for path in reversed(image.layers):
                if (digest := self._layers.digest(path)) is not None:
                    layers.append(digest)
            for step in [*((below or {})[path] for path in reversed(image.layers) if path in (below or {})), copy]:
                draft, pool = self._fresh(), self._fresh()
                pools.append(pool)
                drafts[draft] = ""
                size_bytes = (await step(draft, pool)).size_bytes
                drafts[draft] = _random_digest() if holder else await asyncio.to_thread(content_digest, draft)
            layers += drafts.values()
            async with self._changing:
                for draft, layer in drafts.items():
                    self._layers.add(draft, layer)  # unless there is the same content, from a sandbox of the same image or of another one
                record = ImageRecord(
                    name=wanted or "",
                    digest="",
                    layers=layers,
                    size_bytes=size_bytes,
                    created=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
                    env=image.env,
                    workdir=image.workdir,
                    user=image.user,
                    entrypoint=[*image.entrypoint],
                    config=image.config,
                    base=host.NAME if image.trees else "",
                    parent=image.origin or image.digest,
                    owner="" if holder else owner,
                )
                digest = record.content_digest()
                record = dataclasses.replace(record, digest=digest, name=wanted or names.normalise(digest))
                return await self._add(record)
        finally:
            for path in (*drafts, *pools):
                await asyncio.to_thread(shutil.rmtree, path, True)

    def above(self, image: ImageSpec, layer: str) -> ImageSpec:
        """An image with the layers of *image* and one more, which is not in the store. Raises HoldfastError(image_invalid)."""
        _limit_layers(image)
        top = self._path(skeleton.TOP)
        others = (path for path in image.layers if path != top)
        return dataclasses.replace(image, digest=layer, origin=image.origin or image.digest, layers=(top, layer, *others))

    def config(self, name: str, owner: str = "") -> dict[str, Any]:
        """The digest of an image, its configuration in OCI's form, and the architecture of what runs here.

        Raises HoldfastError(image_not_found, invalid_argument).
        """
        machine = formats.ARCHITECTURES.get(platform.machine(), platform.machine())
        if _is_host(name):
            return {"name": host.NAME, "digest": host.NAME, "config": {}, "architecture": machine}
        record = self._find(name, owner)
        if record is None:
            raise _missing(name)
        return {"name": names.short_name(record.name), "digest": record.digest, "config": record.oci_config(), "architecture": machine}

    async def tag(self, name: str, other: str, owner: str = "", config: object = None, *, shared: bool = False) -> dict[str, Any]:
        """Give an image that the owner may use a second name, of the owner's or *shared*, which costs nothing; with *config* it is an image
        with this configuration.

        Raises HoldfastError(image_not_found, invalid_argument).
        """
        if _is_host(name):
            raise HoldfastError("invalid_argument", "the host image is this machine's and cannot have another name")
        wanted = self._importable_name(other)
        async with self._changing:
            record = self._find(name, owner)
            if record is None:
                raise _missing(name)
            with self._layers.holding(record.layers), contextlib.ExitStack() as held:
                if config is not None:
                    record = await asyncio.to_thread(self._configured, record, config, held)
                return await self._add(dataclasses.replace(record, name=wanted, owner="" if shared else owner))

    def _configured(self, record: ImageRecord, config: object, held: contextlib.ExitStack) -> ImageRecord:
        """The record with another configuration, and a digest of its own."""
        values = checked_config(config)
        folders = [self._layer(digest) for digest in reversed(record.layers)]
        volumes = self._add_volumes(values.pop("volumes"), folders, held)
        layers = [*(layer.digest for layer in volumes if layer.digest not in record.layers), *record.layers]
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        record = dataclasses.replace(record, layers=layers, parent="", created=now, **values)
        return dataclasses.replace(record, digest=record.content_digest())

    def _add_volumes(self, paths: Sequence[str], folders: Sequence[str], held: contextlib.ExitStack) -> Volumes:
        """The layer of an image's volumes; *folders* are its other layers, topmost first, which are held by *held*."""
        link_of = links.link_in_layers(folders)
        volumes = _volume_layer(["/".join(links.without_links(path.split("/"), link_of)) for path in paths])
        held.enter_context(self._layers.holding([layer.digest for layer in volumes]))
        for layer in volumes:
            self._unpack(layer)
        return volumes

    async def export(self, name: str, path: str, owner: str = "") -> None:
        """Write an image as an OCI archive to the new file *path*. Raises HoldfastError(image_not_found, unsupported) and OSError."""
        record = None if _is_host(name) else self._find(name, owner)
        if record is None and not _is_host(name):
            raise _missing(name)
        if record is None or record.base:
            hint = "export what it adds with `holdfast cp`, or begin with an image that was imported or pulled"
            raise HoldfastError("unsupported", f"{name} lies above this machine's own files, which are not exported", hint=hint)
        with self._layers.holding(record.layers):
            await asyncio.to_thread(self._export, record, [self._layer(digest) for digest in record.layers], path)

    def _export(self, record: ImageRecord, layers: Sequence[str], path: str) -> None:
        needed, status = export.largest_bytes(layers), os.statvfs(os.path.dirname(path))
        if needed > status.f_bavail * status.f_frsize * _EXPORTED:
            message = f"the archive of {record.name} needs {needed >> 20} MiB while it is written, and so much is not free"
            raise HoldfastError(
                "no_space", message, hint="files with holes are written out: remove large ones, or copy files with `holdfast cp`"
            )
        with open(path, "xb") as file:
            try:
                export.write_archive(file, layers, record.oci_config(), record.name, record.created, self._ids)
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

    async def remove(self, name: str, owner: str = "") -> None:
        """Remove an image. Raises HoldfastError(image_not_found, image_in_use, permission_denied).

        A snapshot may be removed while sandboxes use it: its layers stay until the last of them has ended.
        """
        if _is_host(name):
            raise HoldfastError("invalid_argument", "the host image is this machine's and cannot be removed")
        wanted = names.normalise(name)
        async with self._changing:
            record = self._records.get(key_of(owner, wanted))
            if record is None and wanted in self._records:
                hint = "your own image of the same name would be used instead of it; the operator can remove it"
                raise HoldfastError("permission_denied", f"the image {name} is shared by all owners", hint=hint)
            if record is None:
                raise _missing(name)
            others = self._has_digest(record.digest, but=record)
            if not record.parent and not others and self.in_use(record.digest):
                raise HoldfastError("image_in_use", f"sandboxes are using {name}")
            # From here on no create finds the image, and creates that found it are counted as users.
            del self._records[record.key]
            os.unlink(self._index_file(record.key))
            if self.before_remove and not others:
                await self.before_remove(record.digest)
            await asyncio.to_thread(self._collect_layers)

    def _has_digest(self, digest: str, but: ImageRecord | None = None) -> bool:
        return any(record.digest == digest and record is not but for record in self._records.values())

    def _import(self, path: str, name: str, held: contextlib.ExitStack) -> ImageRecord:
        """Unpack an image's layers, which are held by *held*."""
        workspace = self._fresh()
        try:
            with formats.open_image(path, workspace, self._limits) as source:
                if len(source.layers) > _MOST_LAYERS:
                    raise HoldfastError("image_invalid", f"more than {_MOST_LAYERS} layers")
                held.enter_context(self._layers.holding([layer.digest for layer in source.layers]))
                for layer in source.layers:
                    self._unpack(layer)
                folders = [self._layer(layer.digest) for layer in reversed(source.layers)]
                volumes = self._add_volumes(source.volumes, folders, held)
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
                    config=source.config,
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
        os.rename(draft, self._index_file(record.key))

    def _unpack(self, layer: formats.Layer) -> None:
        if os.path.isdir(self._layer(layer.digest)):
            return
        unpacked = self._fresh()
        try:
            layer.unpack(unpacked)
            self._shift_owners(unpacked)
            self._layers.add(unpacked, layer.digest)
        finally:
            shutil.rmtree(unpacked, ignore_errors=True)

    async def release(self, image: ImageSpec) -> None:
        """A sandbox of *image* has ended: if it was the last of an image that was removed, its layers are removed too."""
        if image.digest != host.NAME and not self._has_digest(image.digest):
            async with self._changing:
                await asyncio.to_thread(self._collect_layers)

    def _collect_layers(self) -> None:
        """Remove the layers of no image. A running sandbox may still use the layers of a replaced one."""
        self._layers.remove_unused({digest for record in self._records.values() for digest in record.layers}, self.layer_in_use)

    def _by_digest(self, name: str, owner: str) -> ImageRecord | None:
        digest = name if name.startswith("sha256:") else name.partition("@")[2]
        return next((record for record in self._visible(owner) if record.digest == digest), None) if digest else None

    @staticmethod
    def _importable_name(name: str) -> str:
        if _is_host(name):
            raise HoldfastError("invalid_argument", "the name host is reserved for this machine's own image")
        return names.normalise(name)

    def _layer(self, digest: str) -> str:
        return self._layers.path(digest)

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

    def _index_file(self, key: str) -> str:
        return self._path("index", hashlib.sha256(key.encode()).hexdigest() + ".json")

    def _fresh(self) -> str:
        path = self._path("tmp", os.urandom(8).hex())
        os.mkdir(path, 0o755)
        return path

    def _path(self, *parts: str) -> str:
        return os.path.join(self._directory, *parts)


def _limit_layers(image: ImageSpec) -> None:
    if len(image.layers) >= MAX_LAYERS - 1:
        raise HoldfastError("image_invalid", f"a snapshot of this sandbox would have more than {_MOST_LAYERS} layers")


def _random_digest() -> str:
    return f"sha256:{os.urandom(32).hex()}"


async def _whole(work: Coroutine[Any, Any, ImageRecord]) -> ImageRecord:
    """Await *work* on a thread, which ends before a cancellation is passed on: it still uses what the caller would remove."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _missing(name: str) -> HoldfastError:
    return HoldfastError("image_not_found", f"there is no image {name} on this machine")


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
