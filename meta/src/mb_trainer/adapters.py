"""Loading of a run's adapters on top of their base weights. Imports torch and megatron."""

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
    """Load the base model and the adapters of a run, and merge them. Collective.

    Raises:
        PeftError: the adapters have a user-defined class, for which no merge is defined.
    """
    load_adapted(selection, chunks, config, groups)
    merge(chunks)


def load_adapted(
    selection: SelectedCheckpoint, chunks: list[Any], config: ConfigContainer, groups: ProcessGroupCollection
) -> LoRA:
    """Load the base model and the adapters of a run without merging them; return the description of the adapters.

    Collective.

    Raises:
        PeftError: the run has no adapters, or adapters of a user-defined class, which is unknown here.
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
