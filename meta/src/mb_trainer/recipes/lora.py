"""Recipes that train LoRA adapters."""

from importlib.util import find_spec
from pathlib import Path

from mb_config.trainer_api import recipe
from mb_trainer.config import ConfigContainer, LoRA, TextCorpusConfig, TokenizerConfig
from mb_trainer.recipes.gpt import gpt_tiny

BASE = "runs/gpt_tiny/checkpoints"
"""Folder of the checkpoints that `mb pretrain gpt_tiny` writes."""


def trained_gpt_tiny() -> ConfigContainer:
    """Build gpt_tiny from its trained weights, with the tokenizer of its data."""
    config = gpt_tiny()
    tokenizer = Path(BASE, f"iter_{config.train.train_iters:07d}", "tokenizer.json")
    config.tokenizer = TokenizerConfig(
        tokenizer_type="HuggingFaceTokenizer", tokenizer_model=tokenizer.as_posix()
    )
    config.model.vocab_size = 4096
    config.checkpoint.pretrained_checkpoint = BASE
    return config


def folder_of(package: str) -> Path:
    """Return the folder of an installed package without importing it.

    Raises:
        ModuleNotFoundError: The package is not installed.
    """
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(
            f"{package}: is not an installed package. Install what brings it.", name=package
        )
    return Path(spec.submodule_search_locations[0])


@recipe(
    f"adapters on gpt_tiny for sources that it has not seen, from {BASE}: mb pretrain gpt_tiny first; "
    "about a minute on two CPU cores"
)
def lora_tiny() -> ConfigContainer:
    """Build adapters of rank 8 on the weights of gpt_tiny, for sources outside its training data: Megatron Core's.

    The loss falls from 5.8 to 4.9.
    """
    config = trained_gpt_tiny()
    config.dataset = TextCorpusConfig(
        sources=[str(folder_of("megatron.core") / "models")],
        seq_length=config.model.seq_length,
        vocab_size=4096,
        dataloader_type="single",
        num_workers=0,
    )
    config.peft = LoRA(dim=8, alpha=16.0, lora_A_init_method="kaiming")
    config.train.train_iters = 100
    config.optimizer.lr, config.optimizer.min_lr = 5e-3, 5e-4
    return config
