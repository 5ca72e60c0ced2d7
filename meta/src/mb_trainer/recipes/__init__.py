"""Recipes: named, complete configurations for `mb pretrain NAME`. Each model family has its own file."""

from collections.abc import Mapping

from mb_config.trainer_api import Recipe
from mb_trainer.recipes import finetuning, gpt, hybrid, lora, mimo, t5
from mb_trainer.recipes.finetuning import sft_tiny
from mb_trainer.recipes.gpt import gpt_tiny
from mb_trainer.recipes.hybrid import hybrid_tiny
from mb_trainer.recipes.lora import lora_tiny
from mb_trainer.recipes.mimo import mimo_tiny
from mb_trainer.recipes.t5 import t5_tiny

__all__ = ["RECIPES", "Recipe", "gpt_tiny", "hybrid_tiny", "lora_tiny", "mimo_tiny", "sft_tiny", "t5_tiny"]

RECIPES: Mapping[str, Recipe] = {
    **finetuning.RECIPES,
    **gpt.RECIPES,
    **hybrid.RECIPES,
    **lora.RECIPES,
    **mimo.RECIPES,
    **t5.RECIPES,
}
"""All recipes by name."""
