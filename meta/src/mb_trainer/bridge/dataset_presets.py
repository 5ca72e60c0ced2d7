"""Datasets by name for Megatron-Bridge's launcher `run_recipe.py`. No torch."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

from mb_data.trainer_api import PromptCompletionSFTPreprocessingConfig
from mb_trainer.bridge.recipe_bases import (
    default_gsm8k_config,
    default_openmathinstruct2_config,
    default_squad_config,
    default_tulu3_config,
)
from mb_trainer.config import ConfigContainer, FinetuningDatasetConfig, GPTDatasetConfig, MockGPTDatasetConfig


def _documents(kind: type[GPTDatasetConfig], *, seq_length: int) -> GPTDatasetConfig:
    return kind(
        seq_length=seq_length,
        reset_attention_mask=False,
        reset_position_ids=False,
        eod_mask_loss=False,
        num_dataset_builder_threads=1,
        split="9999,8,2",
        data_sharding=True,
        dataloader_type="single",
    )


def _local_rows(*, seq_length: int) -> FinetuningDatasetConfig:
    return FinetuningDatasetConfig(
        seq_length=seq_length,
        preprocessing=PromptCompletionSFTPreprocessingConfig(
            prompt_column="input", completion_column="output", separator=" "
        ),
        dataloader_type="batch",
        seed=5678,
    )


DATASET_PRESETS: Mapping[str, Callable[..., Any]] = {
    "mock": partial(_documents, MockGPTDatasetConfig),
    "megatron-indexed": partial(_documents, GPTDatasetConfig),
    "squad": partial(default_squad_config, enable_offline_packing=False),
    "tulu3": default_tulu3_config,
    "openmathinstruct2": default_openmathinstruct2_config,
    "gsm8k": default_gsm8k_config,
    "local-jsonl": _local_rows,
}
"""Name of a dataset -> function of `seq_length` that returns its section."""


def build_dataset_config(config: ConfigContainer, dataset_name: str) -> Any:
    """Return the section of a dataset, with the sequence length of the model.

    Raises:
        ValueError: There is no such dataset here.
    """
    if dataset_name not in DATASET_PRESETS:
        raise ValueError(
            f"dataset_name: {dataset_name!r} is not here. Use one of {', '.join(DATASET_PRESETS)}, or a section of "
            "mb_trainer.config."
        )
    return DATASET_PRESETS[dataset_name](seq_length=config.model.seq_length)


def dataset_train_mode(dataset_config: Any) -> Literal["pretrain", "finetune"]:
    """Return the function that trains on a section."""
    return "pretrain" if isinstance(dataset_config, GPTDatasetConfig) else "finetune"
