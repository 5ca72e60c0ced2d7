"""Adapters of a run, put into the weights that they were trained on. Imports torch and megatron."""

from typing import Any

from megatron.core.process_groups_config import ProcessGroupCollection

from mb_checkpoint import CheckpointConfig, CheckpointLoadContext, Selection, load_checkpoint
from mb_loop import TrainState
from mb_models.peft.config import LoRA, PeftError
from mb_models.peft.lora import merge
from mb_trainer.config import ConfigContainer
from mb_trainer.state import GlobalState


def load_merged(
    selection: Selection, chunks: list[Any], config: ConfigContainer, groups: ProcessGroupCollection
) -> None:
    """Load the model that the adapters of a run belong to, and the adapters, and merge them. Collective.

    Raises:
        PeftError: the adapters are of a class of one's own, of which nothing says how to merge them.
    """
    if not isinstance(config.peft, LoRA):
        raise PeftError(
            f"peft: {type(config.peft).__name__} cannot be merged, because it is no kind of LoRA. Do it with the class "
            "itself."
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
    merge(chunks)
