"""Recipes: named, complete configurations for `mb pretrain NAME`. Each model family has its own file."""

from collections.abc import Mapping

from mb_config.trainer_api import Recipe, recipes_in
from mb_trainer.recipes import (
    deepseek,
    finetuning,
    gemma,
    gpt,
    gpt_oss,
    hybrid,
    llama,
    lora,
    mimo,
    mixtral,
    one_gpu,
    qwen,
    t5,
)
from mb_trainer.recipes.finetuning import sft_tiny
from mb_trainer.recipes.gpt import gpt_tiny
from mb_trainer.recipes.hybrid import hybrid_tiny
from mb_trainer.recipes.lora import lora_tiny
from mb_trainer.recipes.mimo import mimo_tiny
from mb_trainer.recipes.t5 import t5_tiny

__all__ = ["RECIPES", "Recipe", "gpt_tiny", "hybrid_tiny", "lora_tiny", "mimo_tiny", "sft_tiny", "t5_tiny"]

_GPTS = (gpt, one_gpu, gemma, llama, qwen, mixtral, gpt_oss, deepseek)

RECIPES: Mapping[str, Recipe] = {
    name: recipe
    for module in (finetuning, *_GPTS, hybrid, lora, mimo, t5)
    for name, recipe in recipes_in(vars(module)).items()
}
"""All recipes by name, in the order of `mb recipes`."""
