"""Recipe of the project. `mb pretrain sorting_tiny` finds it by the entry point in pyproject.toml."""

from typing import Any

from mb_config import Rule
from mb_trainer import Recipe, UserCode
from mb_trainer.config import ConfigContainer, TokenizerConfig
from mb_trainer.recipes import gpt_tiny
from own_project.callbacks import TokenCounter
from own_project.data import SortingDatasetConfig
from own_project.model import ScaledGPTConfig


def sorting_tiny() -> ConfigContainer:
    """Build a small GPT that sorts digits."""
    config = gpt_tiny()
    config.model = ScaledGPTConfig(
        num_layers=2,
        hidden_size=64,
        ffn_hidden_size=128,
        num_attention_heads=4,
        seq_length=31,
        position_embedding_type="rope",
        normalization="RMSNorm",
        hidden_dropout=0.0,
        attention_dropout=0.0,
        calculate_per_token_loss=True,
        initial_scale=2.0,
    )
    config.dataset = SortingDatasetConfig(seq_length=31, dataloader_type="single", num_workers=0)
    config.tokenizer = TokenizerConfig(tokenizer_type="ByteTokenizer")
    config.train.train_iters, config.train.global_batch_size, config.train.micro_batch_size = 60, 32, 32
    config.validation.eval_interval, config.validation.eval_iters = 30, 2
    config.checkpoint.save_interval = 30
    return config


def sorting_step(data_iterator: Any, model: Any, return_schedule_plan: bool = False) -> Any:
    """Run the forward step of the project, which is imported with the first batch: recipes load without torch."""
    from own_project.steps import sorting_step as step

    return step(data_iterator, model, return_schedule_plan)


SORTING_TINY = Recipe(
    summary="own_project: a small GPT that sorts digits, with its own model, data and loss",
    build=sorting_tiny,
    code=UserCode(forward_step=sorting_step, callbacks=[TokenCounter()]),
)

RECIPES = {"sorting_tiny": SORTING_TINY}
"""Recipes that `--import own_project.recipes` adds without an installation."""

RULES = (
    Rule(
        id="OWN1",
        fields=("dataset.digits",),
        test=lambda digits: (
            f"must be at most 256 (digits={digits})" if digits is not None and digits > 256 else None
        ),
        why="a digit is one byte",
        fix="Lower dataset.digits.",
        fails={"dataset.digits": 300},
        passes={"dataset.digits": 10},
    ),
)
"""Rules that `mb check` applies as well."""
