"""Weights of a saved run in an unwrapped model, for sampling and export. Imports torch and megatron."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from megatron.core.process_groups_config import ProcessGroupCollection

from mb_checkpoint import CheckpointConfig, CheckpointLoadContext, load_checkpoint
from mb_loop import TrainState
from mb_trainer.config import ConfigContainer
from mb_trainer.state import GlobalState


def weights_loader(
    folder: Path, chunks: list[Any], config: ConfigContainer, groups: ProcessGroupCollection
) -> Callable[[Callable[[str], bool]], object]:
    """Return a function that loads the weights with selected names, and those under adapters, from a checkpoint."""
    base = config.checkpoint.pretrained_checkpoint if config.peft is not None else None
    settings = CheckpointConfig(
        load=str(folder), finetune=True, pretrained_checkpoint=base, verify_integrity=config.peft is not None
    )

    def load(is_selected: Callable[[str], bool]) -> object:
        context = CheckpointLoadContext(
            state=GlobalState(cfg=config, train_state=TrainState()),
            model=chunks,
            optimizer=None,
            opt_param_scheduler=None,
            adapter_key_filter=is_selected,
            pg_collection=groups,
        )
        return load_checkpoint(context, settings)

    return load
