"""Recipe for fine-tuning an imported model, which `mb import-hf` writes as run_config.yaml."""

from pathlib import Path

from mb_data.trainer_api import TOKENIZER_FILES
from mb_trainer.config import (
    ConfigContainer,
    GPTModelConfig,
    MambaModelConfig,
    TextCorpusConfig,
    TokenizerConfig,
)
from mb_trainer.recipes.gpt import gpt_tiny

LONGEST = 2048
"""Sequence length after an import, unless the model's maximum is lower; a default for the user to raise."""


def imported_model(section: GPTModelConfig | MambaModelConfig, *, folder: Path) -> ConfigContainer:
    """Build fine-tuning of an imported model on the data of the recipe gpt_tiny.

    Args:
        section: Model section of the weights; `seq_length` is lowered in place.
        folder: Folder of the import, with `checkpoints/` and the files of the tokenizer.
    """
    config = gpt_tiny()
    section.seq_length = min(section.seq_length, LONGEST)
    config.model = section
    config.mixed_precision = "bf16_mixed" if section.bf16 else "fp16_mixed" if section.fp16 else None
    config.optimizer.lr, config.optimizer.min_lr = 1e-5, 1e-6
    tokenizer = folder / TOKENIZER_FILES[0]
    if tokenizer.is_file():
        config.tokenizer = TokenizerConfig(
            tokenizer_type="HuggingFaceTokenizer", tokenizer_model=str(tokenizer.resolve())
        )
    config.dataset = TextCorpusConfig(
        seq_length=section.seq_length, vocab_size=4096, dataloader_type="single", num_workers=0
    )
    config.checkpoint.pretrained_checkpoint = str((folder / "checkpoints").resolve())
    return config
