"""Model, optimizer and learning-rate scheduler of a training run, built from a section and connected.

`build_training_model` performs, in this order: choice of the family and its layers, construction of this rank's
chunks, the pre-wrap hook (adapters, heads, freezing), data parallelism, the optimizer, the run-time hooks of Megatron's
schedules, the scheduler.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallelConfig, finalize_model_grads
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator
from megatron.core.process_groups_config import ProcessGroupCollection

from mb_models.errors import ModelConfigError
from mb_models.families import Family, ForwardStep, family_of
from mb_models.gpt.layer_choice import LayerChoice, choose_layers
from mb_models.mimo.groups import ModuleGroups
from mb_models.mimo.module_parallelism import ModuleParallelism, data_positions, ignore_bridge_warning
from mb_models.mimo.modules import MimoModules
from mb_models.mimo.provider import MimoForwardStep
from mb_models.training.chunks import built_parameter_count
from mb_models.training.fsdp import register_shard_load_hooks, wrap_megatron_fsdp, wrap_torch_fsdp2
from mb_models.training.wrap import wrap_ddp

WrapHook = Callable[[list[Any]], Any]
"""Function of a rank's chunks that modifies them in place, or returns others as a list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallelSetup:
    """Data parallelism of a model."""

    config: DistributedDataParallelConfig = field(default_factory=DistributedDataParallelConfig)
    """Megatron's settings, which also select Megatron-FSDP (`use_megatron_fsdp`); not modified."""
    torch_fsdp2: bool = False
    """Use torch's FSDP2."""
    align_grad_reduce: bool = True
    """Start the gradient reduction of all pipeline stages at the same time, if it overlaps with the backward pass."""
    broadcast_parameters: bool = False
    """Copy the weights of the first replica to the others. Required if replicas are seeded differently."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSetup:
    """Optimizer and learning-rate scheduler of a model."""

    config: OptimizerConfig
    """Megatron's settings; not modified."""
    config_overrides: Callable[[list[Any]], Mapping[Any, Any] | None] | None = None
    """Called with the wrapped chunks; returns Megatron's settings for selected parameters. None: Megatron's standard
    ones, such as no weight decay for biases."""
    scheduler: Callable[[Any], Any] | None = None
    """Called with the optimizer; returns the learning-rate scheduler at its first step. None: no scheduler."""
    gloo_groups: bool = False
    """Let the optimizer use the gloo groups of Megatron's global state, which gather its state on the host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingModel:
    """Model with optimizer and scheduler, as Megatron's schedules and a training loop take them."""

    chunks: list[Any]
    """Model chunks of this rank, wrapped for data parallelism: one, or one per virtual stage."""
    optimizer: Any
    """Megatron's optimizer."""
    scheduler: Any
    """Learning-rate scheduler; None: there is none."""
    forward_step: Callable[..., ForwardStep]
    """Factory of the forward step, called as (inspect_loss=); a GPT also takes packed=."""
    schedule: Mapping[str, Any]
    """Arguments of a training loop: Megatron's `forward_backward_func`, its `pg_collection` and `p2p_communicator`."""
    layers: LayerChoice
    """Layers of the model, with the reason of the choice."""
    transformer: Any
    """Megatron's configuration of the model."""
    vocab_size: int
    """Rows of the embedding, including padding."""
    parameters: int
    """Parameters of the complete model, each counted once; without adapters."""
    groups: ProcessGroupCollection
    """Process groups of the model; with per-module parallelism those of this rank's main module."""
    checkpoint_groups: Any
    """Process groups, or positions with their methods, by which checkpoints are written."""
    modules: ModuleParallelism | None = None
    """Modules with per-module parallelism; None: one model."""

    @property
    def device(self) -> torch.device:
        """Return the device of the parameters."""
        device: torch.device = next(self.chunks[0].parameters()).device
        return device

    def start_adapters(self, peft: Any, *, resumed: bool) -> None:
        """Initialize adapters from the loaded base weights, unless they were loaded themselves. Collective.

        Args:
            peft: section `peft`.
            resumed: adapters and optimizer were loaded from a checkpoint.
        """
        # The optimizer copied the adapters into its main parameters before they were initialized: it reads them again.
        if not resumed:
            peft.start(self.chunks)
            self.optimizer.reload_model_params()


def build_training_model(  # noqa: PLR0913 (parts of a run, each by name)
    section: Any,
    *,
    groups: ProcessGroupCollection | ModuleGroups,
    optimizer: OptimizerSetup,
    ddp: DataParallelSetup | None = None,
    device: torch.device,
    layers: LayerChoice | None = None,
    tokenizer_vocab_size: int | None = None,
    pre_wrap_hook: WrapHook | Sequence[WrapHook] | None = None,
    post_wrap_hook: WrapHook | Sequence[WrapHook] | None = None,
    seed: int = 1234,
) -> TrainingModel:
    """Build a model for training, with its optimizer and scheduler.

    Every rank calls it with seeded generators. Collective over the data-parallel groups, and over the world with
    `ModuleGroups`. The section is not modified.

    Args:
        section: model section, such as `GPTModelConfig`.
        groups: process groups of the model, or of each module of a MIMO model with per-module parallelism.
        optimizer: optimizer and scheduler.
        ddp: data parallelism; None: Megatron's with its defaults.
        device: device of the parameters.
        layers: layer implementation; None: chosen by `choose_layers`.
        tokenizer_vocab_size: entries of the tokenizer; required if the section sets no vocabulary size.
        pre_wrap_hook: called with this rank's chunks before they are wrapped (`PEFT.install`); modifies them in place,
            or returns others as a list. Of several, each is called with the chunks that the previous one returned.
        post_wrap_hook: the same with the wrapped chunks, before the optimizer is built.
        seed: seed of the weights with `ModuleGroups`; otherwise weights come from the seeded generators.

    Raises:
        TypeError: the section belongs to no family.
        ModelConfigError: the model, or a hook on modules with per-module parallelism, is not supported.
        mb_models.rules.fsdp.FsdpError: the model cannot be sharded as configured.
    """
    parts = _ModelParts.of(section, layers=layers, device=device, tokenizer_vocab_size=tokenizer_vocab_size)
    ddp = DataParallelSetup() if ddp is None else ddp
    if isinstance(groups, ModuleGroups):
        _reject_hook(pre_wrap_hook=pre_wrap_hook, post_wrap_hook=post_wrap_hook)
        return _build_modules(parts, groups=groups, optimizer=optimizer, ddp=ddp, seed=seed)
    hooks = [
        [] if hook is None else [hook] if callable(hook) else hook for hook in (pre_wrap_hook, post_wrap_hook)
    ]
    return _build_one_model(parts, groups=groups, optimizer=optimizer, ddp=ddp, hooks=hooks)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ModelParts:
    """Model section with the family and the layers that it is built of."""

    section: Any
    family: Family
    layers: LayerChoice
    options: Mapping[str, Any]
    """Layers, device and size of the tokenizer, as every provider takes them."""

    @classmethod
    def of(
        cls,
        section: Any,
        *,
        layers: LayerChoice | None,
        device: torch.device,
        tokenizer_vocab_size: int | None,
    ) -> "_ModelParts":
        """Choose the layers unless they are given, and set their implementation in the section."""
        family = family_of(section)
        if layers is None:
            layers = choose_layers(family, device, wanted=section.transformer_impl)
        options = {
            "layer_spec": layers.spec,
            "device": device,
            "tokenizer_vocab_size": tokenizer_vocab_size,
        }
        return cls(section=layers.section_of(section), family=family, layers=layers, options=options)

    def parameter_count(self, chunks: list[Any], *, vocab_size: int, groups: ProcessGroupCollection) -> int:
        """Return the number of parameters of the complete model, from unwrapped chunks. Collective."""
        if self.family.parameters is None:
            return built_parameter_count(chunks, groups)
        return self.family.parameters(self.section, vocab_size=vocab_size)


def _reject_hook(**hooks: object) -> None:
    for name, hook in hooks.items():
        if hook:
            raise ModelConfigError(
                [
                    f"{name}: is set, because hooks such as adapters do not support modules with per-module "
                    "parallelism. Build one model under a ProcessGroupCollection, or pass no hook."
                ]
            )


def _hooked(chunks: list[Any], hooks: Sequence[WrapHook]) -> list[Any]:
    """Return the chunks after the hooks, each of which modifies them in place or returns others.

    Raises:
        ModelConfigError: a hook returned another number of chunks, or no list.
    """
    for hook in hooks:
        changed = hook(chunks)
        if changed is None:
            continue
        if not isinstance(changed, list) or len(changed) != len(chunks):
            raise ModelConfigError(
                [
                    f"hook: {hook!r} returned {type(changed).__name__} for a list of {len(chunks)} chunks, because a "
                    "stage keeps its number of chunks. Return the list, or nothing."
                ]
            )
        chunks = changed
    return chunks


def _build_one_model(
    parts: _ModelParts,
    *,
    groups: ProcessGroupCollection,
    optimizer: OptimizerSetup,
    ddp: DataParallelSetup,
    hooks: Sequence[Sequence[WrapHook]],
) -> TrainingModel:
    """Build this rank's chunks, their optimizer and the scheduler. Collective over the data-parallel groups."""
    provider = parts.family.provider(parts.section, **parts.options)
    pre_wrap_hooks, post_wrap_hooks = hooks
    built = provider.provide_chunks(groups)
    # Before wrapping, which may shard what is counted, and before the hooks, which add adapters.
    parameters = parts.parameter_count(built, vocab_size=provider.vocab_size, groups=groups)
    if pre_wrap_hooks:
        built = _hooked(built, pre_wrap_hooks)
    chunks = wrap_data_parallel(
        built,
        ddp,
        groups=groups,
        disable_bucketing=optimizer.config.overlap_param_gather_with_optimizer_step,
    )
    if post_wrap_hooks:
        chunks = _hooked(chunks, post_wrap_hooks)
    # After wrapping: the optimizer takes its parameters from the buffers of the wrapper.
    stepper = build_optimizer(chunks, optimizer, groups=groups)
    if ddp.torch_fsdp2:
        register_shard_load_hooks(stepper)
    connect_optimizer(provider.transformer, chunks, stepper, ddp=ddp)
    return TrainingModel(
        chunks=chunks,
        optimizer=stepper,
        scheduler=None if optimizer.scheduler is None else optimizer.scheduler(stepper),
        forward_step=parts.family.forward_step,
        schedule=_pipeline_schedule(provider.transformer, groups),
        layers=parts.layers,
        transformer=provider.transformer,
        vocab_size=provider.vocab_size,
        parameters=parameters,
        groups=groups,
        checkpoint_groups=groups,
    )


def data_groups(groups: ProcessGroupCollection | ModuleGroups) -> Any:
    """Return the process groups, or positions with their methods, by which ranks read data.

    With per-module parallelism every rank reads complete microbatches, and uses its rows in the forward step.
    """
    return data_positions(groups) if isinstance(groups, ModuleGroups) else groups


def wrap_data_parallel(
    chunks: list[Any],
    ddp: DataParallelSetup,
    *,
    groups: ProcessGroupCollection,
    disable_bucketing: bool = False,
) -> list[Any]:
    """Wrap a rank's chunks in half precision and in the configured data parallelism. All ranks call it."""
    if ddp.torch_fsdp2:
        return list(wrap_torch_fsdp2(chunks, ddp.config, pg_collection=groups))
    wrap_chunks = wrap_megatron_fsdp if ddp.config.use_megatron_fsdp else wrap_ddp
    return list(
        wrap_chunks(
            chunks,
            ddp.config,
            pg_collection=groups,
            disable_bucketing=disable_bucketing,
            broadcast_parameters=ddp.broadcast_parameters,
        )
    )


def build_optimizer(chunks: list[Any], setup: OptimizerSetup, *, groups: ProcessGroupCollection) -> Any:
    """Build Megatron's optimizer of wrapped chunks. All ranks of the model call it."""
    overrides = None if setup.config_overrides is None else setup.config_overrides(chunks)
    return get_megatron_optimizer(
        setup.config,
        chunks,
        config_overrides=overrides,
        use_gloo_process_groups=setup.gloo_groups,
        pg_collection=None
        if setup.gloo_groups
        else groups,  # gloo groups are in Megatron's global state only
    )


def connect_optimizer(transformer: Any, chunks: list[Any], optimizer: Any, *, ddp: DataParallelSetup) -> None:
    """Set the hooks in the model's configuration through which Megatron's schedules scale, synchronise and finalise."""
    transformer.grad_scale_func = optimizer.scale_loss
    transformer.finalize_model_grads_func = finalize_model_grads
    if ddp.config.overlap_grad_reduce:
        transformer.no_sync_func = _one_or_all([chunk.no_sync for chunk in chunks])
        if ddp.align_grad_reduce:
            transformer.grad_sync_func = _one_or_all([chunk.start_grad_sync for chunk in chunks])
    if ddp.config.overlap_param_gather and ddp.config.align_param_gather:
        transformer.param_sync_func = _one_or_all([chunk.start_param_sync for chunk in chunks])


def _one_or_all(functions: list[Callable[..., Any]]) -> Any:
    """Return the single function of one chunk, or the list that interleaved schedules expect."""
    return functions[0] if len(functions) == 1 else functions


def _pipeline_schedule(transformer: Any, groups: ProcessGroupCollection) -> dict[str, Any]:
    """Return Megatron's schedule for this parallelism, with its groups and pipeline communication."""
    stages, virtual_stages = groups.pp.size(), transformer.virtual_pipeline_model_parallel_size
    return {
        "forward_backward_func": get_forward_backward_func(stages, virtual_stages),
        "pg_collection": groups,
        "p2p_communicator": P2PCommunicator(groups.pp, transformer),
    }


def _build_modules(
    parts: _ModelParts,
    *,
    groups: ModuleGroups,
    optimizer: OptimizerSetup,
    ddp: DataParallelSetup,
    seed: int,
) -> TrainingModel:
    """Build this rank's modules, their optimizers and the scheduler. Collective over the world."""
    modules = MimoModules(parts.section, groups=groups, **parts.options)
    ignore_bridge_warning()
    model = modules.provide(seed=seed)
    modules.wrap(model, ddp.config)
    overrides = None if optimizer.config_overrides is None else optimizer.config_overrides([model])
    stepper = modules.optimizer(model, optimizer.config, overrides=overrides)
    parallelism = ModuleParallelism(groups=groups, wrapped=model.wrapped)
    return TrainingModel(
        chunks=[model],
        optimizer=stepper,
        scheduler=None if optimizer.scheduler is None else optimizer.scheduler(stepper),
        forward_step=partial(MimoForwardStep, rows=groups.rows),
        schedule={"forward_backward_func": modules.forward_backward(), "pg_collection": groups.main},
        layers=parts.layers,
        transformer=modules.transformer,
        vocab_size=modules.vocab_size,
        parameters=parts.parameter_count([model], vocab_size=modules.vocab_size, groups=groups.main),
        groups=groups.main,
        checkpoint_groups=parallelism.checkpoint_positions,
        modules=parallelism,
    )
