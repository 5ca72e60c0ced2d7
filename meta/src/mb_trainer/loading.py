"""Resume from a checkpoint. Imports torch and megatron."""

from pathlib import Path
from typing import Any

from megatron.core.process_groups_config import ProcessGroupCollection

from mb_checkpoint import CheckpointLoadContext, CheckpointManager, DefaultCheckpointManager
from mb_checkpoint.collectives import on_rank_zero
from mb_checkpoint.context import CheckpointProbe
from mb_loop.mcore import MegatronRerunMachine
from mb_trainer.checkpointing import adapter_filter
from mb_trainer.console import Voice
from mb_trainer.positions import put_others_alike
from mb_trainer.state import GlobalState
from mb_trainer.trainee import Trainee


class ManagerStateError(ValueError):
    """Error of a custom checkpoint manager that loaded a step without the counters of the run."""


def load(
    manager: CheckpointManager,
    state: GlobalState,
    trainee: Trainee,
    *,
    groups: ProcessGroupCollection,
    reruns: MegatronRerunMachine | None,
    voice: Voice,
    train_data_iterator: Any = None,
) -> None:
    """Resume from the newest intact checkpoint, and report the loaded and the skipped ones. Collective.

    The default manager always loads, because only its load finds checkpoints on the disks of the nodes. For a custom
    manager with `has_checkpoint`, rank 0 calls that first. A custom manager without it always loads, and returns (0, 0)
    if it has no checkpoint.
    """
    custom = not isinstance(manager, DefaultCheckpointManager)
    if custom and isinstance(manager, CheckpointProbe) and not on_rank_zero(manager.has_checkpoint):
        return
    positions = state.cfg.dataset.dataloader_load
    step, operations = manager.load(
        CheckpointLoadContext(
            state=state,
            model=trainee.chunks,
            optimizer=trainee.optimizer,
            opt_param_scheduler=trainee.scheduler,
            adapter_key_filter=adapter_filter(state.cfg),
            pg_collection=groups,
            rerun_state_machine=reruns,
            train_data_iterator=train_data_iterator,
            dataloader_load=None if positions is None else Path(positions),
        )
    )
    put_others_alike(train_data_iterator)
    loaded = manager.loaded if isinstance(manager, DefaultCheckpointManager) else None
    if loaded is not None and loaded.source == "nothing":
        return
    if custom and not loaded_anything(manager, state, step=step, operations=operations):
        return
    peft = state.cfg.peft
    if peft is not None and state.train_state.step == 0:
        peft.start(trainee.chunks)
        trainee.optimizer.reload_model_params()
    if loaded is None:
        voice.say(f"resumed at step {state.train_state.step}")
        return
    if peft is not None:
        voice.say(f"model under the adapters: {state.cfg.checkpoint.pretrained_checkpoint}")
    for passed in loaded.skipped:
        voice.say(f"passed over {passed.path}: {passed.reason}")
    for note in loaded.notes:
        voice.say(note)
    if loaded.source == "weights":
        voice.say(f"weights from {loaded.path}")
    else:
        voice.say(f"resumed from {loaded.path} at step {loaded.step}")


def loaded_anything(manager: CheckpointManager, state: GlobalState, *, step: int, operations: float) -> bool:
    """Return whether a custom manager loaded a checkpoint, according to the result of its `load`.

    Raises:
        ManagerStateError: it returned a step and left the counters of the run unchanged.
    """
    if step and not state.train_state.step:
        raise ManagerStateError(
            f"checkpoint.custom_manager_class: load of {state.cfg.checkpoint.custom_manager_class} returned step "
            f"{step} and left ctx.state.train_state at step 0, from which data and schedule would begin again. Restore "
            "it with ctx.state.train_state.load_state_dict."
        )
    return bool(step or operations) or isinstance(manager, CheckpointProbe)
