"""Recipes that train adapters."""

from dataclasses import replace

from mb_trainer.config import ConfigContainer, LoRA
from mb_trainer.recipes.gpt import gpt_tiny
from mb_trainer.recipes.recipe import Recipe

BASE = "runs/gpt_tiny/checkpoints"
"""Where `mb pretrain gpt_tiny` leaves its checkpoints."""


def lora_tiny() -> ConfigContainer:
    """Build adapters of rank 8 on the model that the recipe gpt_tiny has trained, on the same data."""
    config = gpt_tiny()
    config.peft = LoRA(dim=8, alpha=16.0)
    config.checkpoint.pretrained_checkpoint = BASE
    config.train.train_iters = 100
    config.optimizer = replace(config.optimizer, lr=1e-3, min_lr=1e-4)
    return config


RECIPES = {
    "lora_tiny": Recipe(
        summary=f"adapters on gpt_tiny, from {BASE}: mb pretrain gpt_tiny first; about a minute on two CPU cores",
        build=lora_tiny,
    ),
}
