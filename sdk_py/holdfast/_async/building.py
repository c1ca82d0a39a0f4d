"""Building an image from a Dockerfile in sandboxes of the service.

Owns the order of stages and instructions, what each changes in the image's configuration, and the cache: each step that changes files runs
in a sandbox of the state before it, and a snapshot of that sandbox is the state after it, named by a key of everything that the step
depends on. ``build_steps`` runs the steps. Called by ``images``.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast._async.build_state import AsyncAction, AsyncStageState
from holdfast._async.build_steps import AsyncCopyStep, AsyncRunStep
from holdfast._build.config import DEFAULT_PATH, Config
from holdfast._build.errors import wrong
from holdfast._build.instructions import command_of, flags_of, healthcheck_of, json_list, pairs
from holdfast._build.lines import Line, read
from holdfast._build.request import BuildRequest, Opened, located, open_build
from holdfast._build.stages import PROXIES, Stage, argument_pairs, stage_named
from holdfast._build.words import expand, expand_words
from holdfast._build_results import BuildEvent
from holdfast._errors import DockerfileError, ImageNotFoundError, NotFoundError
from holdfast._results import ImageInfo, take
from holdfast._transport.aio.events import finished, shielded

if TYPE_CHECKING:
    from holdfast import AsyncSandbox, AsyncSandboxClient

STEP = "localhost/build-step"
"""Images of this name are the states after steps; the service keeps a bounded number and does not list them with other images."""
_VERSION = "2"
"""Changes when the meaning of a step changes: older results are then not used."""
_LIFETIME_S = 6 * 3600.0
_ORPHANED_AFTER_S = 120.0
_HOST = "host"
_LOCAL = "localhost/"
"""The beginning of names that have no registry."""


class AsyncBuild:
    """One build. ``run`` returns the image."""

    def __init__(self, client: AsyncSandboxClient, request: BuildRequest) -> None:
        self.client, self.request = client, request
        self.opened: Opened
        self._states: dict[int, AsyncStageState] = {}
        self._sources: dict[str, AsyncSandbox] = {}
        self._step = self._steps = 0
        self._proxies = {name: request.build_args[name] for name in PROXIES if name in request.build_args}
        self._used = {*PROXIES}

    async def run(self) -> ImageInfo:
        """Build. Raises ``DockerfileError``, ``BuildError`` and what creates, snapshots and file operations raise."""
        self.opened = await finished(open_build, self.request, await self.client.images._architecture())
        wanted = self.opened.plan.wanted
        self._steps = sum(1 + len(stage.lines) for stage in wanted)
        self._used |= {*self.opened.plan.globals}
        try:
            if self.request.name:
                await self._is_there(self.request.name)  # a wrong name is refused before anything is built
            for stage in wanted:
                self._states[stage.number] = await self._stage(stage)
            state = self._states[wanted[-1].number]
            await self._finish_directories(state, force=state.image == _HOST)
        except DockerfileError as why:
            raise located(why, self.opened.path) from None
        finally:
            await shielded(self._close)
        if unused := sorted({*self.request.build_args} - self._used):
            self.tell("output", 0, "", f"warning: no ARG takes {', '.join(unused)}\n")
        state.config.add_labels(self.request.labels.items())
        return await self._named(state)

    async def _named(self, state: AsyncStageState) -> ImageInfo:
        from holdfast._transport.rest.readers import image_info

        name = self.request.name or f"localhost/build:{state.key[:12]}"
        body = {"name": state.image, "tag": name, "config": state.config.to_map()} | ({"shared": True} if self.request.shared else {})
        return image_info((await self.client._rest.request("POST", "/images/tag", json=body)).map())

    async def _close(self) -> None:
        for sandbox in self._sources.values():
            await sandbox.delete()
        self._sources.clear()

    def tell(self, kind: Any, line: int, stage: str, text: str, seconds: float = 0.0) -> None:
        """Report an event."""
        if self.request.on_event is not None:
            self.request.on_event(BuildEvent(kind, self._step, self._steps, line, stage, text, seconds))

    # Images and sandboxes ---------------------------------------------------------------------------------------------

    async def _stage(self, stage: Stage) -> AsyncStageState:
        self._begin(stage, stage.line, f"FROM {stage.base}" + (f" AS {stage.name}" if stage.name else ""))
        began = time.monotonic()
        if stage.of_stage is not None:
            before = self._states[stage.of_stage]
            await self._finish_directories(before)
            state = AsyncStageState(stage, before.image, before.key, before.config.copied(), before.arguments)
        else:
            image, key, config = await self.base(stage.base, stage.line)
            state = AsyncStageState(stage, image, key, Config.of(config))
        state.config.env.setdefault("PATH", DEFAULT_PATH)
        self.tell("done", stage.line, stage.title, "", time.monotonic() - began)
        triggers = state.config.values.pop("OnBuild", None) or []
        for trigger in triggers:
            for line in read(str(trigger).encode()).lines:
                if line.name in ("FROM", "ONBUILD", "MAINTAINER"):
                    raise wrong(stage.line, f"{stage.base} has ONBUILD {line.name}, which is not allowed there")
                await self._instruction(state, Line(stage.line, line.name, line.words, line.heredocs), counted=False)
        for line in stage.lines:
            await self._instruction(state, line)
        return state

    async def _built(self, stage: Stage) -> AsyncStageState:
        """The state of a stage, also of one that only an ONBUILD of a base image names: it is built now."""
        if stage.number not in self._states:
            for number in sorted(stage.needs):
                await self._built(self.opened.plan.stages[number])
            self._steps += 1 + len(stage.lines)
            self._states[stage.number] = await self._stage(stage)
        return self._states[stage.number]

    async def base(self, name: str, line: int) -> tuple[str, str, dict[str, Any]]:
        """An image to begin with: its name for creates, the beginning of keys, and its configuration; pulled if it is not there."""
        if name == "scratch":
            return await self._without_workspace(await self._scratch(), {}), "scratch", {}
        if self.request.pull and name != _HOST and not name.startswith(_LOCAL):
            await self.client.images.pull(name)
        try:
            found = await self._config(name)
        except NotFoundError:
            hint = f"holdfast image import FILE {name:.100}"
            if name.startswith(_LOCAL):
                raise wrong(line, f"there is no image {name:.200}", hint) from None
            try:
                await self.client.images.pull(name)
            except ImageNotFoundError as why:
                raise wrong(line, f"there is no image {name:.200}: {why.message:.300}", hint) from None
            found = await self._config(name)
        digest = take(found, "digest", str, default="") or name
        config = take(found, "config", dict, default={})
        return await self._without_workspace(digest if digest.startswith("sha256:") else name, config), digest, config

    async def _without_workspace(self, image: str, config: dict[str, Any]) -> str:
        """The image with a working directory: in sandboxes of images that have none, ``/workspace`` is created and would be built in."""
        if config.get("WorkingDir") or image == _HOST:
            return image
        name = f"{STEP}:base-{hashlib.sha256(image.encode()).hexdigest()}"
        if not await self._is_there(name):
            body = {"name": image, "tag": name, "config": {**config, "WorkingDir": "/"}}
            await self.client._rest.request("POST", "/images/tag", json=body)
        return name

    async def _config(self, name: str) -> dict[str, Any]:
        return (await self.client._rest.request("GET", "/images/config", params={"name": name})).map()

    async def _scratch(self) -> str:
        name = f"{STEP}:scratch"
        try:
            await self._config(name)
        except NotFoundError:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "empty.tar"
                await finished(_write_empty, path)
                await self.client.images.import_(path, name)
        return name

    async def sandbox(self, image: str, *, block_network: bool = True) -> AsyncSandbox:
        """A sandbox for a step, which ends with this process."""
        request = self.request
        return await self.client.create_sandbox(
            image,
            cpu=request.cpu,
            memory=request.memory,
            disk=request.disk,
            labels={"build": (request.name or "unnamed").replace("/", ".")[:60]},
            lifetime_s=_LIFETIME_S,
            heartbeat_timeout_s=_ORPHANED_AFTER_S,
            block_network=block_network,
        )

    async def source_sandbox(self, state: AsyncStageState, word: str, line: int) -> tuple[AsyncSandbox, str]:
        """A sandbox to copy from, of a stage or an image, and the key of its files."""
        stage = stage_named(self.opened.plan.stages, state.stage.number, word)
        if stage is not None:
            source = await self._built(stage)
            await self._finish_directories(source)
            image, key = source.image, source.key
        else:
            image, key, _ = await self.base(word, line)
        if image not in self._sources:
            self._sources[image] = await self.sandbox(image)
        return self._sources[image], key

    # Steps ------------------------------------------------------------------------------------------------------------

    async def step(self, state: AsyncStageState, material: object, perform: AsyncAction,
                   *, line: int, block_network: bool = True) -> None:  # fmt: skip
        """Change the files of a stage by ``perform``, unless an earlier build has done the same to the same files."""
        key = self._key(state, material)
        name, directories = f"{STEP}:{key}", state.directories
        state.key, state.directories = key, []
        if self.request.use_cache and await self._is_there(name):
            state.image = name
            self.tell("cached", line, state.stage.title, "")
            return
        sandbox = await self.sandbox(state.image, block_network=block_network)
        try:
            for path, user in directories:
                await AsyncCopyStep.make_directory(sandbox, path, user, line)
            await perform(sandbox)
            await sandbox.snapshot(name)
        finally:
            await shielded(sandbox.delete)
        state.image = name

    @staticmethod
    def _key(state: AsyncStageState, material: object) -> str:
        text = json.dumps([_VERSION, state.key, state.directories, material], sort_keys=True)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    async def is_cached(self, state: AsyncStageState, material: object) -> bool:
        """Whether an earlier build has done this step."""
        return await self._is_there(f"{STEP}:{self._key(state, material)}")

    async def _is_there(self, name: str) -> bool:
        try:
            await self._config(name)
        except NotFoundError:
            return False
        return True

    async def _finish_directories(self, state: AsyncStageState, *, force: bool = False) -> None:
        """Create the directories of WORKDIR behind which no step came. ``force``: make a step even without any."""
        if state.directories or force:
            await self.step(state, "WORKDIR", _nothing, line=state.stage.line)

    # Instructions -----------------------------------------------------------------------------------------------------

    def _begin(self, stage: Stage, line: int, text: str) -> None:
        self._step += 1
        self.tell("step", line, stage.title, text)

    async def _instruction(self, state: AsyncStageState, line: Line, *, counted: bool = True) -> None:
        if counted:
            self._begin(state.stage, line.number, f"{line.name} {line.words}")
        began = time.monotonic()
        if line.name == "RUN":
            await AsyncRunStep(self, state, line).perform()
        elif line.name in ("COPY", "ADD"):
            await AsyncCopyStep(self, state, line).perform()
        else:
            self._configure(state, line)
        if counted:
            self.tell("done", line.number, state.stage.title, "", time.monotonic() - began)

    def _configure(self, state: AsyncStageState, line: Line) -> None:
        """An instruction that changes no files."""
        config, escape, number = state.config, self.opened.file.escape, line.number
        values = state.values
        match line.name:
            case "ARG":
                self._argument(state, line)
            case "ENV":
                config.env |= {
                    expand(name, values, number, escape): expand(value, values, number, escape) for name, value in pairs(line, escape)
                }
            case "LABEL":
                found = pairs(line, escape)
                config.add_labels([(expand(n, values, number, escape), expand(v, values, number, escape)) for n, v in found])
            case "MAINTAINER":
                config.add_labels([("maintainer", line.words)])
            case "WORKDIR":
                config.set_workdir(expand(line.words, values, number, escape), number)
                if config.workdir != "/":
                    state.directories = [*state.directories, (config.workdir, config.user)]
            case "USER":
                user = expand(line.words, values, number, escape)
                if not user:
                    raise wrong(number, "USER has no name")
                config.values["User"] = user
            case "EXPOSE":
                config.expose(expand_words(line.words, values, number, escape), number)
            case "VOLUME":
                words = json_list(line.words)
                config.add_volumes(
                    [expand(one, values, number, escape) for one in words]
                    if words is not None
                    else expand_words(line.words, values, number, escape),
                    number,
                )
            case "STOPSIGNAL":
                config.values["StopSignal"] = expand(line.words, values, number, escape)
            case "CMD":
                config.set_command(command_of(line, line.words, config.shell))
            case "ENTRYPOINT":
                config.set_entrypoint(command_of(line, line.words, config.shell))
            case "SHELL":
                shell = json_list(line.words)
                if not shell:
                    raise wrong(number, "SHELL must be a JSON list", 'write SHELL ["/bin/bash", "-c"]')
                config.values["Shell"] = shell
            case "HEALTHCHECK":
                config.values["Healthcheck"] = healthcheck_of(line, config.shell)
            case "ONBUILD":
                trigger = line.words.split(None, 1)[0].upper() if line.words else ""
                if trigger in ("", "FROM", "ONBUILD", "MAINTAINER"):
                    raise wrong(number, f"ONBUILD {trigger} is not allowed".replace("  ", " "))
                documents = "".join(f"\n{one.text}{one.name}" for one in line.heredocs)
                config.values["OnBuild"] = [*config.values.get("OnBuild", []), line.words + documents]
        flags_of(line, frozenset({"interval", "timeout", "start-period", "start-interval", "retries"}))

    def _argument(self, state: AsyncStageState, line: Line) -> None:
        known = self.opened.plan.provided | self.opened.plan.globals
        for name, default in argument_pairs(line, state.values, self.opened.file.escape):
            self._used.add(name)
            value = self.request.build_args.get(name, default if default is not None else known.get(name))
            if value is not None:
                state.arguments[name] = value

    def run_environment(self, state: AsyncStageState) -> dict[str, str]:
        """The variables of RUN without the proxies, which are in no key."""
        return state.values

    def proxies(self) -> dict[str, str]:
        """The proxies that were given as arguments of the build."""
        return self._proxies


async def _nothing(sandbox: AsyncSandbox) -> None:
    """A step that only creates directories."""


def _write_empty(path: Path) -> None:
    with tarfile.open(path, "w") as archive:
        root = tarfile.TarInfo(".")
        root.type, root.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(root, io.BytesIO())
