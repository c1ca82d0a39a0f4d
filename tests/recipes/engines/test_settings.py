"""The file of the recipe's settings, and recipes by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from holdfast_recipes.core.errors import ConfigurationError
from holdfast_recipes.engines.shared import close_shared, recipe_of
from holdfast_recipes.engines.swe import SweSettings, opened
from holdfast_recipes.pipeline.errors import RecipeError

from tests.recipes.engines.launching import LAUNCH


def test_the_example_is_the_papers_groups_with_paths_beside_the_file() -> None:
    settings = SweSettings.read(LAUNCH / "recipe.json")
    assert (settings.tasks, settings.archives) == (LAUNCH / "tasks" / "tasks.jsonl", LAUNCH / "tasks" / "archives")
    assert (settings.balance().size, settings.balance().budget) == (8, 16)
    rollout = settings.limits.rollout
    assert (rollout.steps, rollout.wall_s, rollout.tokens) == (250, 1800, 65536)


def test_fields_that_are_not_known_and_groups_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="no such settings of the recipe: taks"):
        SweSettings.of({"taks": "x"})
    with pytest.raises(ConfigurationError, match="no file of tasks"):
        SweSettings.of({})
    with pytest.raises(ConfigurationError, match="divide"):
        SweSettings.of({"tasks": "x", "stride": 5}).balance()
    assert SweSettings.of({"tasks": "x", "harness": "editor", "steps": 3}, Path("/f")).limits.rollout.steps == 3


async def test_recipes_by_name_are_opened_once_and_errors_reach_everyone(tmp_path: Path) -> None:
    first = await recipe_of("tests.recipes.engines.tiny:recipe_without_sandboxes")
    assert await recipe_of("tests.recipes.engines.tiny:recipe_without_sandboxes") is first
    await close_shared()
    assert await recipe_of("tests.recipes.engines.tiny:recipe_without_sandboxes") is not first
    await close_shared()
    with pytest.raises(ConfigurationError, match="names no recipe"):
        await recipe_of("")
    settings = tmp_path / "recipe.json"
    settings.write_text('{"tasks": "none.jsonl"}')
    for _ in range(2):
        with pytest.raises((RecipeError, OSError)):
            await recipe_of(str(settings))
    with pytest.raises((RecipeError, OSError)):
        async with opened(SweSettings.read(settings)):
            pass
