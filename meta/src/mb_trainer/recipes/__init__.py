"""Recipes: complete configurations with a name, ready for `mb pretrain NAME`. A file per family."""

from collections.abc import Mapping

from mb_trainer.recipes import gpt
from mb_trainer.recipes.gpt import gpt_tiny
from mb_trainer.recipes.recipe import Recipe

__all__ = ["RECIPES", "Recipe", "gpt_tiny"]

RECIPES: Mapping[str, Recipe] = {**gpt.RECIPES}
"""Every recipe by its name."""
