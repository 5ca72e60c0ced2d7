"""Adapters of a run, put into the weights that they were trained on. Imports torch and megatron."""

from typing import Any

from megatron.core.process_groups_config import ProcessGroupCollection

from mb_checkpoint import CheckpointConfig, CheckpointLoadContext, SelectedCheckpoint, load_checkpoint
from mb_loop import TrainState
from mb_models.peft.config import LoRA, PeftError
from mb_models.peft.lora import merge
from mb_trainer.config import ConfigContainer
from mb_trainer.state import GlobalState


def load_merged(
    selection: SelectedCheckpoint, chunks: list[Any], config: ConfigContainer, groups: ProcessGroupCollection
) -> None:
    """Load the model that the adapters of a run belong to, and the adapters, and merge them. Collective.

    Raises:
        PeftError: the adapters are of a class of one's own, of which nothing says how to merge them.
    """
    load_adapted(selection, chunks, config, groups)
    merge(chunks)


def load_adapted(
    selection: SelectedCheckpoint, chunks: list[Any], config: ConfigContainer, groups: ProcessGroupCollection
) -> LoRA:
    """Load the model that the adapters of a run belong to, and the adapters beside it; return what they are.

    Collective.

    Raises:
        PeftError: the run has no adapters, or some of a class of one's own, of which nothing is known here.
    """
    if not isinstance(config.peft, LoRA):
        kind = "a run without adapters" if config.peft is None else type(config.peft).__name__
        raise PeftError(
            f"peft: {kind} cannot be merged or exported, because it is no kind of LoRA. Do it with the class "
            "itself, or export the whole model."
        )
    config.peft.install(chunks)
    load_checkpoint(
        CheckpointLoadContext(
            state=GlobalState(cfg=config, train_state=TrainState()),
            model=chunks,
            optimizer=None,
            opt_param_scheduler=None,
            adapter_key_filter=config.peft.is_adapter,
            pg_collection=groups,
        ),
        CheckpointConfig(
            load=str(selection.path),
            finetune=True,
            pretrained_checkpoint=config.checkpoint.pretrained_checkpoint,
        ),
    )
    return config.peft
