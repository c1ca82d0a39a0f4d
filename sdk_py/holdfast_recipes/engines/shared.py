"""Recipes of a process that is an engine's worker: opened by name at the first rollout, and shared by all rollouts of an event loop.

Owns that name: a file of the SWE recipe's settings, or ``package.module:function`` for another recipe. An engine that creates an
object for every rollout has no other place to keep a recipe.
"""

from __future__ import annotations

import asyncio
import importlib
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path

from holdfast_recipes.core.errors import ConfigurationError
from holdfast_recipes.policy.tokenizer import Tokenizer

from .groups import Recipe
from .swe import SweSettings, opened

_recipes: dict[tuple[int, str], tuple[AsyncExitStack, asyncio.Future[Recipe]]] = {}


async def recipe_of(name: str, tokenizer: Tokenizer | None = None) -> Recipe:
    """The recipe of a file of settings, or of ``package.module:function``, which is called with the tokenizer. It stays open while the
    process lives or until ``close_shared``; its sandboxes end with their lease after that."""
    key = (id(asyncio.get_running_loop()), name)
    if key not in _recipes:
        stack, made = AsyncExitStack(), asyncio.get_running_loop().create_future()
        _recipes[key] = stack, made
        try:
            made.set_result(await stack.enter_async_context(_opening(name, tokenizer)))
        except BaseException as error:
            del _recipes[key]
            made.set_exception(error)
            made.exception()  # it is raised here; who waits sees it too
            raise
    return await asyncio.shield(_recipes[key][1])


async def close_shared() -> None:
    """End the recipes of this event loop, and with them every sandbox that is left."""
    loop = id(asyncio.get_running_loop())
    for key in [key for key in _recipes if key[0] == loop]:
        await _recipes.pop(key)[0].aclose()


def _opening(name: str, tokenizer: Tokenizer | None) -> AbstractAsyncContextManager[Recipe]:
    if not name:
        raise ConfigurationError("the engine's configuration names no recipe")
    module, colon, function = name.partition(":")
    if colon and not Path(name).exists():
        made: AbstractAsyncContextManager[Recipe] = getattr(importlib.import_module(module), function)(tokenizer)
        return made
    return opened(SweSettings.read(Path(name)), tokenizer)
