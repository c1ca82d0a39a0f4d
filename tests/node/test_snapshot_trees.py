"""Random trees of branches, changes, deletes and kills of the node, beside a model: plain directories that get the same changes.

``HOLDFAST_SNAPSHOT_TREES`` sets how many trees there are; ``make soak`` takes a thousand.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.node.filetrees import CHANGE, some_change
from tests.node.harness import NodeClient, ask
from tests.node.harness import node as running_node
from tests.node.leftovers import census
from tests.support.requires import requires
from tests.support.until import until

pytestmark = requires("namespaces", "root")

STEPS = 14
_MODEL: dict[str, Any] = {}
exec(CHANGE, _MODEL)


class Tree:
    """One tree: sandboxes with their models, and images with theirs."""

    def __init__(self, client: NodeClient, folder: Path, seed: int) -> None:
        self.client = client
        self.folder = folder
        self.chance = random.Random(seed)
        self.boxes: dict[str, tuple[str, Path]] = {}
        self.images: dict[str, Path] = {}
        self.number = 0

    def _model(self, source: Path | None) -> Path:
        self.number += 1
        model = self.folder / str(self.number)
        model.mkdir() if source is None else shutil.copytree(source, model, symlinks=True)
        return model

    async def create(self, image: str, source: Path | None) -> None:
        model = self._model(source)
        name = f"t{self.number}"
        box = await self.client.create(name, image=image)
        if source is None:
            await self._python(box["endpoint"], "os.mkdir('/tree')")
        self.boxes[name] = (box["endpoint"], model)

    async def _python(self, endpoint: str, script: str) -> Any:
        return await ask(endpoint, "python", script=f"{CHANGE}\n{script}")

    async def change(self, name: str) -> None:
        endpoint, model = self.boxes[name]
        changes = [some_change(self.chance) for _ in range(self.chance.randint(1, 12))]
        await self._python(endpoint, f"for one in {changes!r}: change('/tree', *one)")
        for one in changes:
            _MODEL["change"](str(model), *one)

    async def check(self, name: str) -> None:
        endpoint, model = self.boxes[name]
        assert await self._python(endpoint, "result = describe('/tree')") == _MODEL["describe"](str(model)), name

    async def step(self) -> None:
        name = self.chance.choice(sorted(self.boxes))
        kind = self.chance.choice(("change", "change", "change", "branch", "branch", "delete", "forget"))
        if kind == "branch":
            image = (await self.client.call("snapshot", sandbox_id=name))["image"]["digest"]
            self.images[image] = self._model(self.boxes[name][1])
            for _ in range(self.chance.randint(1, 2)):
                await self.create(image, self.images[image])
        elif kind == "delete" and len(self.boxes) > 1:
            await self.client.call("delete", sandbox_id=name)
            del self.boxes[name]
        elif kind == "forget" and self.images:
            image = self.chance.choice(sorted(self.images))
            await self.client.call("image_remove", name=image)
            del self.images[image]
        else:
            await self.change(name)

    async def restart(self, client: NodeClient) -> None:
        """After a node was killed: the sandboxes are gone, the images are not."""
        self.client = client
        self.boxes.clear()
        known = {image["digest"] for image in (await client.call("images"))["images"]}
        assert known - {"host"} == set(self.images)
        for image, model in sorted(self.images.items()):
            await self.create(image, model)
        if not self.boxes:
            await self.create("host", None)


async def _play(data: Path, seeds: range) -> None:
    async with running_node(data, HOLDFAST_DEFAULT_DISK="256Mi") as node:
        for seed in seeds:
            print(f"seed {seed}")
            folder = data.with_name(f"models-{seed}")
            folder.mkdir()
            tree = Tree(await node.client(), folder, seed)
            await tree.create("host", None)
            for step in range(STEPS):
                await tree.step()
                if step == STEPS // 2 and seed % 5 == 0:
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


async def test_branches_equal_their_models(tmp_path: Path) -> None:
    await _play(tmp_path / "data", range(20))


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_a_thousand_trees(tmp_path: Path) -> None:
    await _play(tmp_path / "data", range(20, 20 + int(os.environ.get("HOLDFAST_SNAPSHOT_TREES", "1000"))))
