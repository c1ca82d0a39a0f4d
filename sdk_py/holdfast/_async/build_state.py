"""What the steps of a build know of it: the state of a stage, and what a step may ask of the build."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from holdfast._build.config import Config
from holdfast._build.request import BuildRequest, Opened
from holdfast._build.stages import Stage

if TYPE_CHECKING:
    from holdfast import AsyncSandbox  # by its public name: its module imports others of this package


class AsyncAction(Protocol):
    """What changes the files of a sandbox."""

    async def __call__(self, sandbox: AsyncSandbox, /) -> None: ...


class AsyncStageState:
    """The state of a stage after an instruction: an image with its files, a key of what led to them, and the configuration."""

    def __init__(self, stage: Stage, image: str, key: str, config: Config, arguments: Mapping[str, str] | None = None) -> None:
        """``arguments``: those of the stage that it begins with."""
        self.stage, self.image, self.key, self.config = stage, image, key, config
        self.arguments = dict(arguments or {})
        self.directories: list[tuple[str, str]] = []
        """Paths of WORKDIR that the next step creates, with the user who then owns them."""

    @property
    def values(self) -> dict[str, str]:
        """What ``$NAME`` means: variables of the image before arguments."""
        return {**self.arguments, **self.config.env}


class AsyncBuilding(Protocol):
    """A build, as its steps see it. ``building`` implements it."""

    request: BuildRequest
    opened: Opened

    async def source_sandbox(self, state: AsyncStageState, word: str, line: int) -> tuple[AsyncSandbox, str]: ...

    async def step(
        self, state: AsyncStageState, material: object, perform: AsyncAction, *, line: int, block_network: bool = True
    ) -> None: ...

    async def is_cached(self, state: AsyncStageState, material: object) -> bool: ...

    def tell(self, kind: Any, line: int, stage: str, text: str, seconds: float = 0.0) -> None: ...

    def run_environment(self, state: AsyncStageState) -> dict[str, str]: ...

    def proxies(self) -> dict[str, str]: ...
