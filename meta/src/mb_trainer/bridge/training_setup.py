"""Parts of a run for a script with a loop of its own, under Megatron-Bridge's names. Imports torch and megatron."""

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.utils import get_model_config

from mb_checkpoint import CheckpointManager
from mb_config import (
    OptimizerConfigOverrideProvider,
    OptimizerConfigOverrideProviderContext,
    Provenance,
    SchedulerSteps,
    build_scheduler,
    to_megatron,
)
from mb_data import DataRanks, prepare_tokenizer
from mb_launch import pick_device, read_world
from mb_loop import CallbackContext, CallbackManager
from mb_models import DataParallelSetup, OptimizerSetup
from mb_models.trainer_api import build_optimizer, connect_optimizer
from mb_trainer.bridge.checkpointing import MANAGER, init_checkpointing_context, load_checkpoint
from mb_trainer.bridge.process_groups import get_pg_collection, initialize_megatron
from mb_trainer.errors import UserCodeError
from mb_trainer.run.data import batch_settings, build_datasets
from mb_trainer.run.model import build_model, select_layers
from mb_trainer.run.preflight import resolve_and_check
from mb_trainer.run.state import GlobalState
from mb_trainer.run.user_code import NO_CODE


class SetupOutput(NamedTuple):
    """Parts of a run."""

    state: GlobalState
    model: list[Any]
    optimizer: Any
    scheduler: Any
    train_data_iterator: Any
    valid_data_iterator: Any
    test_data_iterator: Any
    checkpoint_manager: CheckpointManager
    pg_collection: Any


def get_dataset_provider(dataset_config: Any) -> Callable[..., Any]:
    """Return the function that builds the datasets of a section, of a `mb_data.DatasetBuildContext`."""
    provider: Callable[..., Any] = dataset_config.build_datasets
    return provider


def setup(
    state: GlobalState,
    train_valid_test_datasets_provider: Callable[..., Any],
    get_embedding_ranks: Any = None,
    get_position_embedding_ranks: Any = None,
    restart_store: Any = None,
    callback_manager: CallbackManager | None = None,
) -> SetupOutput:
    """Build the parts of a run as `pretrain` does, and load its checkpoint. Collective over the world.

    Process groups are open until `destroy_global_state` or the end of the process.

    Args:
        state: Settings, which are resolved for this machine and checked, and counters.
        train_valid_test_datasets_provider: `get_dataset_provider(state.cfg.dataset)`.
        get_embedding_ranks: Must be None.
        get_position_embedding_ranks: Must be None.
        restart_store: See `initialize_megatron`.
        callback_manager: Receives `on_data_init_start`.

    Raises:
        mb_config.ConfigError: The configuration is invalid.
        mb_trainer.errors.UserCodeError: An argument is set that has no effect here.
    """
    config, world = state.cfg, read_world(os.environ)
    if train_valid_test_datasets_provider != get_dataset_provider(config.dataset):
        raise UserCodeError(
            "train_valid_test_datasets_provider: is not that of state.cfg.dataset, whose batches and padding the run "
            "has. Pass get_dataset_provider(state.cfg.dataset); own data are a mb_trainer.config.DatasetProvider."
        )
    resolve_and_check(config, world_size=world.world_size, provenance=Provenance.of(config))
    groups = initialize_megatron(
        config,
        get_embedding_ranks=get_embedding_ranks,
        get_position_embedding_ranks=get_position_embedding_ranks,
        restart_store=restart_store,
    )
    device = pick_device(world, external_mapping=config.dist.external_gpu_device_mapping)
    state.tokenizer = prepare_tokenizer(config.dataset, config.tokenizer)
    layers = select_layers(config.model, device)
    built = build_model(
        config,
        groups=groups,
        layers=layers,
        tokenizer_vocab_size=state.tokenizer.vocab_size,
        device=device,
        code=NO_CODE,
    )
    context = init_checkpointing_context(config.checkpoint)
    step, _ = load_checkpoint(
        state,
        built.chunks,
        built.optimizer,
        built.scheduler,
        checkpointing_context=context,
        pg_collection=groups,
    )
    if config.peft is not None:
        built.start_adapters(config.peft, resumed=step > 0)
    if callback_manager is not None:
        callback_manager.fire("on_data_init_start", CallbackContext(state=state, model=built.chunks))
    datasets = build_datasets(config, tokenizer=state.tokenizer, pg_collection=groups)
    data = datasets.loaders(batch_settings(config), ranks=DataRanks.of(groups)).resume(state.train_state)
    return SetupOutput(
        state=state,
        model=built.chunks,
        optimizer=built.optimizer,
        scheduler=built.scheduler,
        train_data_iterator=_true_iterator(data.train),
        valid_data_iterator=_true_iterator(data.valid),
        test_data_iterator=_true_iterator(data.test),
        checkpoint_manager=context[MANAGER],
        pg_collection=groups,
    )


def _true_iterator(data: Any) -> Any:
    """Return data without a length, by which a script would test whether there are any; torch's may raise."""
    return data if data is None or isinstance(data, list) else (batch for batch in data)


def setup_optimizer(
    optimizer_config: Any,
    scheduler_config: Any,
    model: Any | Sequence[Any],
    use_gloo_process_groups: bool = False,
    pg_collection: Any = None,
    optimizer_config_override_provider: OptimizerConfigOverrideProvider | None = None,
) -> tuple[Any, Any]:
    """Return Megatron's optimizer and scheduler of wrapped chunks, which its schedules then use. All ranks call it.

    Args:
        optimizer_config: Section `optimizer`.
        scheduler_config: Section `scheduler` of a configuration after `validate`, which computes its lengths.
        model: A chunk or the chunks of this rank.
        use_gloo_process_groups: Let the optimizer gather its state by the gloo groups of Megatron's global state.
        pg_collection: Process groups; None: those of the model.
        optimizer_config_override_provider: Settings of single parameters; None: Megatron's standard ones.

    Raises:
        mb_trainer.errors.UserCodeError: The lengths of the schedule are not computed.
    """
    chunks = [*model] if isinstance(model, Sequence) else [model]
    steps = {name: getattr(scheduler_config, name) for name in SchedulerSteps.__dataclass_fields__}
    if steps["lr_decay_steps"] is None:
        raise UserCodeError(
            "scheduler_config: its lengths are not computed (lr_decay_steps is None), which depend on the batches. "
            "Call validate() of the configuration before."
        )
    provider = optimizer_config_override_provider or OptimizerConfigOverrideProvider()
    context = OptimizerConfigOverrideProviderContext(
        scheduler_config=scheduler_config, optimizer_config=optimizer_config, model=chunks
    )
    optimizer = build_optimizer(
        chunks,
        OptimizerSetup(
            config=to_megatron(optimizer_config),
            config_overrides=lambda _chunks: provider.build_config_overrides(context),
            gloo_groups=use_gloo_process_groups,
        ),
        groups=get_pg_collection(chunks) if pg_collection is None else pg_collection,
    )
    # Chunks need not be wrapped.
    ddp = getattr(chunks[0], "ddp_config", None) or DistributedDataParallelConfig()
    connect_optimizer(get_model_config(chunks[0]), chunks, optimizer, ddp=DataParallelSetup(config=ddp))
    scheduler = build_scheduler(
        optimizer,
        scheduler=scheduler_config,
        optimizer_config=optimizer_config,
        steps=SchedulerSteps(**steps),
    )
    return optimizer, scheduler
