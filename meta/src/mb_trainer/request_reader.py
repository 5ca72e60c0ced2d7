"""Configuration that a command line requests from this trainer: recipe or file, and overrides. No torch."""

from mb_config.overrides.apply import SECTION_FACTORIES
from mb_config.overrides.request import RecipeReader
from mb_models.peft.config import section_by_name
from mb_trainer.config import ConfigContainer
from mb_trainer.registry import REGISTRY

ALL_SECTION_FACTORIES = {**SECTION_FACTORIES, "peft": section_by_name}
"""Section path to the function that makes the section from a name, as in `peft=lora`."""

READER = RecipeReader(
    container=ConfigContainer,
    recipes=REGISTRY.recipes,
    targets=REGISTRY.classes,
    recipe_of_file=REGISTRY.recipe_of_file,
    imported_classes={"checkpoint.custom_manager_class": REGISTRY.accepts},
    default="gpt_tiny",
    section_factories=ALL_SECTION_FACTORIES,
    list_command="mb recipes",
)
"""Reader for all commands. The recipe gpt_tiny is read if a command line names none."""

read_request = READER.read
"""Read `[RECIPE | FILE] [KEY=VALUE ...]` and overlay files; the configuration is not resolved."""
