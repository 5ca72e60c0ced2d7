"""Recipes, classes and rules that the trainer knows: its own, those of installed distributions and imported modules."""

from mb_config.trainer_api import ClassTable, RecipeTable, Registry
from mb_trainer.recipes import RECIPES

REGISTRY = Registry(
    recipes=RecipeTable(RECIPES, group="mb_trainer.recipes"),
    classes=ClassTable(
        ["mb_trainer.models", "mb_trainer.datasets"],
        program=["mb_trainer.bridge.providers"],
        hint="For a class of another project, give its module with --import.",
    ),
    accepted={"mb_checkpoint", "mb_trainer"},
)
"""An installed distribution adds to it by entry points of these groups, `--import MODULE` by its `RECIPES` (name ->
function that builds a configuration), `RULES` and dataclasses.
"""
