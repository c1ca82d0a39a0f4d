"""Random trees of branches, changes, deletes, kills of the node and full disks, beside a model: plain directories with the same changes.

Half of them on a file system whose files can share blocks. ``HOLDFAST_SNAPSHOT_TREES`` sets how many trees there are, and
``HOLDFAST_SNAPSHOT_TREES_FROM`` their first seed; ``make soak`` takes a thousand.
"""

from __future__ import annotations

import os
import random
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.node.filesystems import mounted
from tests.node.filetrees import CHANGE, some_change
from tests.node.harness import NodeClient, RefusedError, ask
from tests.node.harness import node as running_node
from tests.node.leftovers import census
from tests.support.requires import requires
from tests.support.until import until, until_async

pytestmark = requires("namespaces", "root", "reflink file systems")

STEPS = 14
KINDS = ("ext4", "xfs")
SIZE = 3 << 30
BIG = 32 << 20
_MODEL: dict[str, Any] = {}
exec(CHANGE, _MODEL)


class Tree:
    """One tree: sandboxes with their models, and images with theirs."""

    def __init__(self, client: NodeClient, data: Path, folder: Path, seed: int) -> None:
        self.client = client
        self.data = data
        self.folder = folder
        self.chance = random.Random(seed)
        self.boxes: dict[str, tuple[str, Path]] = {}
        self.images: dict[str, Path] = {}
        self.number = 0
        self.interrupted: Path | None = None
        """The model of the snapshot that a kill of the node interrupted, which may have been completed."""

    def _model(self, source: Path | None) -> Path:
        self.number += 1
        model = self.folder / str(self.number)
        model.mkdir() if source is None else shutil.copytree(source, model, symlinks=True)
        return model

    async def create(self, source: Path | None, **more: str) -> None:
        """A sandbox with the files of *source*, of an ``image`` or a ``branch_point``; without, an empty one."""
        model = self._model(source)
        name = f"t{self.number}"
        box = await self.client.create(name, **more)
        if source is None:
            await self._python(box["endpoint"], "os.mkdir('/tree')")
        self.boxes[name] = (box["endpoint"], model)

    async def _python(self, endpoint: str, script: str) -> Any:
        return await ask(endpoint, "python", script=f"{CHANGE}\n{script}")

    async def change(self, name: str) -> None:
        endpoint, model = self.boxes[name]
        changes = [some_change(self.chance) for _ in range(self.chance.randint(1, 12))]
        assert await self._python(endpoint, f"for one in {changes!r}: change('/tree', *one)\nresult = 'done'") == "done", "a change failed"
        for one in changes:
            _MODEL["change"](str(model), *one)

    async def check(self, name: str) -> None:
        endpoint, model = self.boxes[name]
        assert await self._python(endpoint, "result = describe('/tree')") == _MODEL["describe"](str(model)), name

    async def step(self) -> None:
        name = self.chance.choice(sorted(self.boxes))
        kind = self.chance.choice(("change", "change", "change", "snapshot", "branch", "branch", "delete", "forget", "full"))
        if kind == "snapshot":
            image = (await self.client.call("snapshot", sandbox_id=name))["image"]["digest"]
            self.images[image] = self._model(self.boxes[name][1])
            for _ in range(self.chance.randint(1, 2)):
                await self.create(self.images[image], image=image)
        elif kind == "branch":
            await self.branch(name)
        elif kind == "delete" and len(self.boxes) > 1:
            await self.client.call("delete", sandbox_id=name)
            del self.boxes[name]
        elif kind == "forget" and self.images:
            image = self.chance.choice(sorted(self.images))
            await self.client.call("image_remove", name=image)
            del self.images[image]
        elif kind == "full":
            await self.fill(name)
        else:
            await self.change(name)

    async def branch(self, name: str) -> None:
        """Branches are of the instant of ``hold``, whatever their parent does afterwards."""
        point, then = (await self.client.call("hold", sandbox_id=name))["branch_point"], self._model(self.boxes[name][1])
        for number in range(self.chance.randint(1, 3)):
            if number and self.chance.random() < 0.5:
                await self.change(name)
            await self.create(then, branch_point=point)
        await self.client.call("release", branch_point=point)

    async def fill(self, name: str) -> None:
        """Where the data folder has no room for another copy of a sandbox's files, that is refused and changes nothing."""
        endpoint = self.boxes[name][0]
        write = f"open('/big', 'wb').write(os.urandom({BIG}))"
        await self._python(endpoint, f"import os; {write}; os.sync()")
        filler, free = self.data.parent / "filler", os.statvfs(self.data)
        try:
            with filler.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - BIG // 2)
            for operation in ("hold", "snapshot", "suspend"):
                with pytest.raises(RefusedError, match="no_space"):
                    await self.client.call(operation, sandbox_id=name)
        finally:
            os.truncate(filler, 0)
            filler.unlink()
        await self._python(endpoint, "import os; os.unlink('/big'); os.sync()")
        for each, _ in self.boxes.values():  # no disk may be written to until the node has measured the free room again
            await until_async(partial(self._has_room, each), deadline_s=30, what="room in the sandboxes")
        await self.check(name)

    async def _has_room(self, endpoint: str) -> bool:
        return bool(await self._python(endpoint, "s = os.statvfs('/'); result = s.f_bavail > s.f_blocks // 4"))

    async def begin(self) -> None:
        """Begin something that the node's end interrupts."""
        name = self.chance.choice(sorted(self.boxes))
        kind = self.chance.choice(("hold", "snapshot", "delete"))
        self.interrupted = self.boxes[name][1] if kind == "snapshot" else None
        await self.client.send(kind, sandbox_id=name)

    async def restart(self, client: NodeClient) -> None:
        """After a node was killed: the sandboxes are gone, the images are not."""
        self.client = client
        self.boxes.clear()
        assert (await client.call("list"))["sandboxes"] == []
        known = {image["digest"] for image in (await client.call("images"))["images"]} - {"host"}
        assert known >= set(self.images)
        for image in known - set(self.images):
            assert self.interrupted is not None, "nothing else can have been completed"
            self.images[image] = self._model(self.interrupted)
        for image, model in sorted(self.images.items()):
            await self.create(model, image=image)
        if not self.boxes:
            await self.create(None)


async def _play(data: Path, seeds: range) -> None:
    async with running_node(data, HOLDFAST_DEFAULT_DISK="256Mi") as node:
        for seed in seeds:
            print(f"seed {seed}")
            folder = data.with_name(f"models-{seed}")
            folder.mkdir()
            tree = Tree(await node.client(), data, folder, seed)
            await tree.create(None)
            for step in range(STEPS):
                await tree.step()
                if step == STEPS // 2 and seed % 5 == 0:
                    await tree.begin()
                    assert node.process
                    node.close_clients()
                    node.process.kill()
                    node.process.wait()
                    node.start()
                    await tree.restart(await node.client())
            for name in sorted(tree.boxes):
                await tree.check(name)
            for name in sorted(tree.boxes, key=lambda _: tree.chance.random()):
                await tree.client.call("delete", sandbox_id=name)
            for image in sorted(tree.images):
                await tree.client.call("image_remove", name=image)
            assert os.listdir(data / "images/layers") == [], "layers of images that are gone"
            node.close_clients()
            shutil.rmtree(folder)
    until(lambda: not any(census(data).values()), deadline_s=60, what=lambda: f"nothing left behind: {census(data)}")
    assert os.listdir(data / "images/tmp") == []


@pytest.mark.parametrize("kind", KINDS)
async def test_branches_equal_their_models(tmp_path: Path, kind: str) -> None:
    with mounted(tmp_path / "disk", kind, SIZE) as folder:
        await _play(folder / "data", range(10))


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_thousand_trees(tmp_path: Path, kind: str) -> None:
    first, count = (int(os.environ.get(f"HOLDFAST_SNAPSHOT_TREES{name}", default)) for name, default in (("_FROM", "20"), ("", "1000")))
    with mounted(tmp_path / "disk", kind, SIZE) as folder:
        await _play(folder / "data", range(first, first + count // len(KINDS)))
