"""Saving and loading of checkpoints, with Megatron-Bridge's parameters. Imports torch and megatron."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mb_checkpoint import (
    CheckpointConfig,
    CheckpointLoadContext,
    CheckpointManager,
    CheckpointNotFoundError,
    CheckpointSaveContext,
    create_checkpoint_manager,
)
from mb_checkpoint import read_train_state as read_counters
from mb_checkpoint.trainer_api import RUN_CONFIG, load_run, read_for_all_ranks, steps_in
from mb_config.trainer_api import read_yaml
from mb_loop import CallbackContext, CallbackManager, TrainState
from mb_trainer.bridge.process_groups import get_pg_collection
from mb_trainer.errors import UserCodeError
from mb_trainer.run.pretrained import save_assets
from mb_trainer.run.state import GlobalState

MANAGER = "checkpoint_manager"
"""Key of the manager in a checkpointing context."""


def init_checkpointing_context(checkpoint_config: CheckpointConfig) -> dict[str, Any]:
    """Return a context for saves and loads, which holds their manager. Without one they use that of the state.

    Raises:
        mb_checkpoint.CheckpointConfigError: The section is invalid.
    """
    return {MANAGER: create_checkpoint_manager(checkpoint_config)}


def save_checkpoint(  # noqa: PLR0913 (Megatron-Bridge's arguments)
    state: GlobalState,
    model: Sequence[Any],
    optimizer: Any,
    opt_param_scheduler: Any,
    num_floating_point_operations_so_far: float,
    checkpointing_context: dict[str, Any] | None = None,
    pipeline_rank: int | None = None,
    tensor_rank: int | None = None,
    non_persistent_ckpt: bool = False,
    train_data_iterator: Any = None,
    preprocess_common_state_dict_fn: Any = None,
    prebuilt_state_dict: dict[str, Any] | None = None,
    pg_collection: Any = None,
    callback_manager: CallbackManager | None = None,
    module_name: str | None = None,
) -> Any:
    """Save the step that the state counts, as section `checkpoint` describes. Collective over the world.

    With `checkpoint.async_save` the save continues in the background: call `maybe_finalize_async_save` after each step.
    With `peft` only the adapters are stored. The arguments of Megatron-LM and the state of a rerun machine are stored
    by `pretrain` alone.

    Args:
        state: Counters and settings.
        model: Model chunks of this rank.
        optimizer: Megatron's optimizer; None: only weights.
        opt_param_scheduler: Scheduler of the learning rate.
        num_floating_point_operations_so_far: Stored as the counter of this name.
        checkpointing_context: Result of `init_checkpointing_context`; None: the manager of the state.
        pipeline_rank: Must be None.
        tensor_rank: Must be None.
        non_persistent_ckpt: Write a non-persistent checkpoint.
        train_data_iterator: Its position is stored.
        preprocess_common_state_dict_fn: Must be None.
        prebuilt_state_dict: Must be None.
        pg_collection: Process groups; None: those of the model.
        callback_manager: Receives `on_checkpoint_save`, or `on_checkpoint_failed`, once the save has ended.
        module_name: Must be None.

    Returns:
        The record of the save; Megatron-Bridge returns None.

    Raises:
        mb_trainer.errors.UserCodeError: An argument is set that has no effect here.
        mb_checkpoint.CheckpointSaveError: The save failed, and `checkpoint.on_save_error` is "raise".
    """
    _reject(
        pipeline_rank=(pipeline_rank, "the ranks are those of the process groups. Pass pg_collection"),
        tensor_rank=(tensor_rank, "the ranks are those of the process groups. Pass pg_collection"),
        preprocess_common_state_dict_fn=(
            preprocess_common_state_dict_fn,
            "ranks do not compare their common state. Omit it",
        ),
        prebuilt_state_dict=(
            prebuilt_state_dict,
            "the state is that of model and optimizer. Pass the model, or use mb_checkpoint.save_model_weights",
        ),
        module_name=(module_name, "a model is saved as a whole. Omit it"),
    )
    events = None
    if callback_manager is not None:
        context = CallbackContext(
            state=state,
            model=model,
            optimizer=optimizer,
            scheduler=opt_param_scheduler,
            user_state=callback_manager.user_state,
        )
        events = SaveEvents(manager=callback_manager, context=context)
    return _manager(state, checkpointing_context).save(
        CheckpointSaveContext(
            state=state,
            model=model,
            optimizer=optimizer,
            opt_param_scheduler=opt_param_scheduler,
            num_floating_point_operations_so_far=num_floating_point_operations_so_far,
            train_data_iterator=train_data_iterator,
            non_persistent_ckpt=non_persistent_ckpt,
            adapter_key_filter=_adapters(state),
            pg_collection=get_pg_collection(model) if pg_collection is None else pg_collection,
        ),
        events,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveEvents:
    """Events of a save for callbacks, which receive the context of this save."""

    manager: CallbackManager
    context: CallbackContext

    def fire(self, event: Any, record: Any) -> None:
        """Call the listeners of an event with the step of the save."""
        self.manager.fire(event, replace(self.context, saved_step=record.step))


def load_checkpoint(  # noqa: PLR0913 (Megatron-Bridge's arguments)
    state: GlobalState,
    model: Sequence[Any],
    optimizer: Any,
    opt_param_scheduler: Any,
    strict: bool = True,
    checkpointing_context: dict[str, Any] | None = None,
    skip_load_to_model_and_opt: bool = False,
    pg_collection: Any = None,
    module_name: str | None = None,
) -> tuple[int, int]:
    """Resume from `checkpoint.load`, else load the weights of `checkpoint.pretrained_checkpoint`. Collective.

    The counters of the state, which determine the position of the data, are those of the checkpoint.

    Args:
        state: Counters, which are replaced, and settings.
        model: Model chunks of this rank.
        optimizer: Megatron's optimizer; None: it is not loaded.
        opt_param_scheduler: Scheduler of the learning rate.
        strict: Reject tensors that only the checkpoint or only the model has.
        checkpointing_context: Result of `init_checkpointing_context`; None: the manager of the state.
        skip_load_to_model_and_opt: Restore only the counters.
        pg_collection: Process groups; None: those of the model.
        module_name: Must be None.

    Returns:
        Step and floating-point operations; (0, 0) unless a run was resumed.

    Raises:
        mb_trainer.errors.UserCodeError: An argument is set that has no effect here.
        mb_checkpoint.errors.CheckpointError: See `mb_checkpoint.load_checkpoint`.
    """
    _reject(module_name=(module_name, "a model is loaded as a whole. Omit it"))
    loaded = load_run(
        _manager(state, checkpointing_context),
        CheckpointLoadContext(
            state=state,
            model=model,
            optimizer=optimizer,
            opt_param_scheduler=opt_param_scheduler,
            strict=strict,
            skip_load_to_model_and_opt=skip_load_to_model_and_opt,
            adapter_key_filter=_adapters(state),
            pg_collection=get_pg_collection(model) if pg_collection is None else pg_collection,
        ),
        counters=state.train_state,
        log=print if torch.distributed.get_rank() == 0 else _discard,
    )
    return loaded.step, int(loaded.floating_point_operations_so_far)


def maybe_finalize_async_save(
    global_state: GlobalState, ckpt_cfg: CheckpointConfig, blocking: bool = False, terminate: bool = False
) -> None:
    """Finish the background save if it is written. Call it on all ranks the same number of times.

    Args:
        global_state: State of the save.
        ckpt_cfg: `global_state.cfg.checkpoint`.
        blocking: Wait for the save.
        terminate: End the background process, too.

    Raises:
        mb_trainer.errors.UserCodeError: `ckpt_cfg` is not `global_state.cfg.checkpoint`.
        mb_checkpoint.CheckpointSaveError: The save failed, and `checkpoint.on_save_error` is "raise".
    """
    if ckpt_cfg is not global_state.cfg.checkpoint:
        raise UserCodeError(
            "ckpt_cfg: is another section than global_state.cfg.checkpoint, with which the save was started. Pass "
            "global_state.cfg.checkpoint."
        )
    if global_state.checkpoint_manager is not None:
        global_state.checkpoint_manager.finalize_async_saves(
            global_state, blocking=blocking, terminate=terminate
        )


def read_train_state(train_state_filename: str) -> TrainState:
    """Return the counters in a train_state.pt, or in the tracker latest_train_state.pt. Collective; not cached.

    Raises:
        mb_checkpoint.errors.CheckpointReadError: The file does not exist, or is damaged.
    """
    path = Path(train_state_filename)
    state = TrainState()
    counters: Mapping[str, Any] = read_for_all_ranks(path, lambda: read_counters(path))
    state.load_state_dict(counters)
    return state


def read_run_config(run_config_filename: str) -> Mapping[str, Any]:
    """Return the content of a run_config.yaml. Collective; not cached.

    Raises:
        mb_checkpoint.errors.CheckpointReadError: The file does not exist, or is not a mapping in YAML.
    """
    path = Path(run_config_filename)
    content: Mapping[str, Any] = read_for_all_ranks(path, lambda: read_yaml(path).data)
    return content


def get_hf_model_id_from_checkpoint(path: Path | str) -> str | None:
    """Return `model.hf_model_id` of a checkpoint, or of the newest one in a folder; None if there is none.

    Raises:
        mb_checkpoint.CheckpointNotFoundError: The folder does not exist.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise CheckpointNotFoundError(f"{folder}: no such folder. Name a folder of checkpoints.")
    if not (folder / RUN_CONFIG).is_file():
        folder = next(iter(steps_in(folder).values()), folder)
    if not (folder / RUN_CONFIG).is_file():
        return None
    model = read_run_config(str(folder / RUN_CONFIG)).get("model")
    return model.get("hf_model_id") if isinstance(model, Mapping) else None


def _reject(**arguments: tuple[object, str]) -> None:
    """Raise for the first argument that is set."""
    for name, (value, reason) in arguments.items():
        if value is not None:
            raise UserCodeError(f"{name}: has no effect, because {reason}.")


def _adapters(state: GlobalState) -> Any:
    peft = state.cfg.peft
    return None if peft is None else peft.is_adapter


def _manager(state: GlobalState, context: dict[str, Any] | None) -> CheckpointManager:
    """Return the manager of a context, which becomes that of the state, or that of the state."""
    if context is not None and MANAGER not in context:
        raise UserCodeError(
            f"checkpointing_context: has no manager ({', '.join(context) or 'it is empty'}). Pass the result of "
            "init_checkpointing_context(cfg.checkpoint), or None."
        )
    if context is not None:
        state.checkpoint_manager = context[MANAGER]
    if state.checkpoint_manager is None:
        state.checkpoint_manager = create_checkpoint_manager(
            state.cfg.checkpoint, write_assets=partial(_save_tokenizer, state)
        )
    manager: CheckpointManager = state.checkpoint_manager
    return manager


def _save_tokenizer(state: GlobalState, folder: Path) -> None:
    save_assets(state.cfg, state.tokenizer, folder)


def _discard(_line: str) -> None: ...
