"""Recipes that train adapters."""

import sysconfig
from pathlib import Path

from mb_trainer.config import ConfigContainer, LoRA, TextCorpusConfig, TokenizerConfig
from mb_trainer.recipes.gpt import gpt_tiny
from mb_trainer.recipes.recipe import Recipe

BASE = "runs/gpt_tiny/checkpoints"
"""Where `mb pretrain gpt_tiny` leaves its checkpoints."""


def lora_tiny() -> ConfigContainer:
    """Build adapters of rank 8 on what gpt_tiny has trained, for tables of characters (Python's `encodings`)."""
    config = gpt_tiny()
    tokenizer = Path(BASE, f"iter_{config.train.train_iters:07d}", "tokenizer.json")
    config.tokenizer = TokenizerConfig(
        tokenizer_type="HuggingFaceTokenizer", tokenizer_model=tokenizer.as_posix()
    )
    config.model.vocab_size = 4096
    config.dataset = TextCorpusConfig(
        sources=[str(Path(sysconfig.get_path("stdlib"), "encodings"))],
        seq_length=config.model.seq_length,
        vocab_size=4096,
        dataloader_type="single",
        num_workers=0,
    )
    config.peft = LoRA(dim=8, alpha=16.0)
    config.checkpoint.pretrained_checkpoint = BASE
    config.train.train_iters = 100
    config.optimizer.lr, config.optimizer.min_lr = 1e-3, 1e-4
    return config


RECIPES = {
    "lora_tiny": Recipe(
        summary=f"adapters on gpt_tiny, from {BASE}: mb pretrain gpt_tiny first; about a minute on two CPU cores",
        build=lora_tiny,
    ),
}
