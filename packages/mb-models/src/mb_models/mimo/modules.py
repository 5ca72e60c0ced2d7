"""Vision-language models with per-module parallelism: encoder and language model have separate ranks or layouts.

On the same ranks, Megatron Core exchanges the encoder's output between the two layouts; on separate ranks it is
sent over a bridge, and the two modules are the stages of a pipeline. Process-wide groups are not needed.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

import torch
from megatron.core import tensor_parallel
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.mimo import MimoModel
from megatron.core.models.mimo import MimoModelConfig as MegatronMimoConfig
from megatron.core.models.mimo.config.role import MIMO_LANGUAGE_MODULE_KEY as LANGUAGE
from megatron.core.optimizer import OptimizerConfig
from megatron.core.pipeline_parallel.multimodule_communicator import MultiModulePipelineCommunicator
from megatron.core.pipeline_parallel.schedules import (
    forward_backward_no_pipelining,
    forward_backward_pipelining_without_interleaving,
)
from megatron.core.process_groups_config import MultiModuleProcessGroupCollection, ProcessGroupCollection
from megatron.core.transformer.enums import ModelType
from megatron.core.transformer.transformer_config import TransformerConfig

from mb_models.config import GPTModelConfig
from mb_models.errors import ModelConfigError
from mb_models.gpt.provider import LayerSpec
from mb_models.gpt.transformer import reject_violations, transformer_config
from mb_models.mimo import rules as mimo_rules
from mb_models.mimo.config import MimoModelConfig, encoder_section, projection_section
from mb_models.mimo.groups import ModuleGroups
from mb_models.mimo.layout_rules import REQUIRED_SETTINGS, unsupported_settings
from mb_models.mimo.optimizer import MimoModulesOptimizer
from mb_models.mimo.provider import VISION, MimoModelProvider, suppress_experimental_warnings


class MimoModulesModel(MimoModel):  # type: ignore[misc] # Megatron Core has no types
    """Megatron's MIMO model with the modules of this rank, and the attributes that schedules and wrappers read.

    The wrappers that reduce gradients are stored alongside the modules instead of enclosing them, so that weights have
    the same names, in memory and in checkpoints, as in a model without per-module parallelism.

    Attributes:
        pg_collection: groups of the language model, or of the encoder on ranks without the language model.
        wrapped: module -> the wrapper that reduces its gradients.
        ddp_config: settings of the wrappers; None before `MimoModules.wrap`.
    """

    def __init__(self, config: MegatronMimoConfig, *, pg_collection: ProcessGroupCollection) -> None:
        super().__init__(config)
        self.pg_collection = pg_collection
        self.model_type = ModelType.encoder_or_decoder
        self.wrapped: dict[str, DistributedDataParallel] = {}
        self.ddp_config: DistributedDataParallelConfig | None = None

    @property
    def modules_here(self) -> Mapping[str, torch.nn.Module]:
        """Return the modules of this rank by name, without their wrappers."""
        modules = {LANGUAGE: self.language_model, **dict(self.modality_submodules.items())}
        return {name: module for name, module in modules.items() if module is not None}

    def zero_grad_buffer(self) -> None:
        """Zero the gradients of this rank's modules."""
        for module in self.wrapped.values():
            module.zero_grad_buffer()


class MimoModulesProvider(MimoModelProvider):
    """Provider with a tensor-parallel size for each module; the section's size is the language model's."""

    def __init__(self, config: MimoModelConfig, *, vision_tensor_parallel_size: int, **settings: Any) -> None:
        self._seen = replace(config, tensor_model_parallel_size=vision_tensor_parallel_size)
        super().__init__(config, **settings)

    def _transformer_config(self) -> TransformerConfig:
        reject_violations(self._seen, device=self.device, rules=mimo_rules.RULES)
        self.encoder = transformer_config(encoder_section(self._seen), device=self.device)
        self.projection = transformer_config(projection_section(self._seen), device=self.device)
        text = {item.name: getattr(self.config, item.name) for item in fields(GPTModelConfig)}
        return transformer_config(GPTModelConfig(**text), device=self.device)


class MimoModules:
    """Construction, wrapping and schedule of a vision-language model on the ranks of its modules.

    Every rank of the world makes the same calls. After training, `model.destroy()` frees the process groups over which
    modules on the same ranks exchange; nothing else does, and it must not be called earlier. Megatron keeps the
    groups of a bridge until the process ends.

    Args:
        config: the section; its layouts are overridden by `groups`.
        groups: process groups of both modules.
        layer_spec: specification of the layers of both transformers.
        device: device of the parameters.
        tokenizer_vocab_size: as for `MimoModelProvider`.

    Attributes:
        groups: as passed.
        transformer: Megatron's configuration of the language model.
        vocab_size: rows of the embedding over all ranks, padding included.

    Raises:
        ModelConfigError: a rule is violated.
    """

    def __init__(
        self,
        config: MimoModelConfig,
        *,
        groups: ModuleGroups,
        layer_spec: LayerSpec,
        device: torch.device,
        tokenizer_vocab_size: int | None = None,
    ) -> None:
        reject_unsupported(config)
        self.groups = groups
        self._provider = MimoModulesProvider(
            replace(
                config,
                tensor_model_parallel_size=groups.ranks[LANGUAGE].tensor_parallel_size,
                language_rank_offset=0,
                vision_tensor_model_parallel_size=None,  # both are in the groups
                moe_token_dispatcher_type="alltoall",  # others reject parts of unequal length
                variable_seq_lengths=True,
            ),
            vision_tensor_parallel_size=groups.ranks[VISION].tensor_parallel_size,
            layer_spec=layer_spec,
            device=device,
            tokenizer_vocab_size=tokenizer_vocab_size,
        )
        self.transformer = self._provider.transformer
        self.vocab_size = self._provider.vocab_size

    def provide(self, *, seed: int) -> MimoModulesModel:
        """Build this rank's modules, with weights initialised from `seed`; `wrap` makes replicas identical.

        Seeds torch's generator, identically on all ranks, and Megatron's tracker, differently on each rank of the
        world: a rank may have different tensor-parallel ranks in the encoder and in the language model.
        """
        rank, groups = torch.distributed.get_rank(), self.groups
        torch.manual_seed(seed)
        tensor_parallel.model_parallel_cuda_manual_seed(seed, tp_rank=rank, ep_rank=0, etp_rank=rank)
        with suppress_experimental_warnings():
            model = MimoModulesModel(
                MegatronMimoConfig(
                    language_model_spec=self._provider.language_spec(groups.by_module[LANGUAGE]),
                    modality_submodules_spec={VISION: self._provider.vision_spec(groups.by_module[VISION])},
                    special_token_ids={VISION: self._provider.config.image_token_id},
                    module_to_grid_map=dict(groups.grids),
                ),
                pg_collection=groups.main,
            )
        for parameter in model.parameters():
            tensor_parallel.set_defaults_if_not_set_tensor_model_parallel_attributes(parameter)
        model.to(self._provider.device)
        return model

    def wrap(self, model: MimoModulesModel, ddp: DistributedDataParallelConfig) -> None:
        """Wrap each module in Megatron's data parallelism, and copy the weights of the first replica to the others.

        `ddp` is not modified: Megatron resolves its buckets in a copy for each module.

        Raises:
            ValueError: `ddp` enables overlapped communication.
        """
        if ddp.overlap_grad_reduce or ddp.overlap_param_gather:
            raise ValueError(
                "ddp.overlap_grad_reduce, ddp.overlap_param_gather: at least one is on "
                f"({ddp.overlap_grad_reduce}, {ddp.overlap_param_gather}), because the exchange of two modules is "
                "never started in time. Switch both off."
            )
        configs = {LANGUAGE: self.transformer, VISION: self._provider.encoder}
        model.wrapped = {
            name: DistributedDataParallel(
                configs[name], copy.copy(ddp), module, pg_collection=self.groups.local[name]
            )
            for name, module in model.modules_here.items()
        }
        model.ddp_config = ddp
        for module in model.wrapped.values():
            module.broadcast_params()
        self.transformer.finalize_model_grads_func = partial(self._finalize, model)

    def optimizer(
        self, model: MimoModulesModel, config: OptimizerConfig, *, overrides: Mapping[Any, Any] | None = None
    ) -> MimoModulesOptimizer:
        """Build the optimizers of this rank's modules, with one gradient norm over all of them.

        `overrides` are Megatron's `config_overrides`: settings for selected parameters.
        """
        return MimoModulesOptimizer.build(model.wrapped, config, groups=self.groups, overrides=overrides)

    def forward_backward(self) -> Callable[..., Any]:
        """Return the schedule, with the other arguments of Megatron Core's `forward_backward_no_pipelining`.

        It returns metrics on ranks of the language model only. Call this method once: on separate ranks each call
        opens the bridge, which is collective over the world.

        Every rank passes the schedule an iterator of the same complete microbatches, with the rows of all replicas,
        and a `MimoForwardStep` whose `rows` are `groups.rows`. The number of rows of a microbatch is divisible by the
        larger of the two data-parallel sizes.
        """
        if not self.groups.disjoint:
            return partial(forward_backward_no_pipelining, pg_collection=self.groups.local[LANGUAGE])
        bridge = MultiModulePipelineCommunicator(
            dict(self.groups.grids),
            {VISION: [LANGUAGE], LANGUAGE: []},
            self.transformer,
            dim_mapping={"s": 0, "b": 1, "h": 2},
            module_output_ndim={VISION: 2},
        )
        return partial(
            forward_backward_pipelining_without_interleaving,
            p2p_communicator=bridge,
            pg_collection=MultiModuleProcessGroupCollection(
                module_pgs=dict(self.groups.local),
                language_model_module_name=LANGUAGE if LANGUAGE in self.groups.local else None,
            ),
        )

    def _finalize(
        self,
        model: MimoModulesModel,
        chunks: Sequence[torch.nn.Module],
        num_tokens: torch.Tensor | None = None,
        *,
        pg_collection: object = None,
        force_all_reduce: bool = False,
    ) -> None:
        """Sum the gradients of each module's replicas, and divide by the tokens, which only the language model counts.

        The groups that the schedule passes are ignored, because `groups` holds those of each module.
        """
        local_groups = self.groups.local
        for name, module in model.wrapped.items():
            finalize_model_grads(
                [module], None, pg_collection=local_groups[name], force_all_reduce=force_all_reduce
            )
        device = next(model.parameters()).device
        tokens = torch.zeros(1, device=device) if num_tokens is None else num_tokens.reshape(1).float()
        if LANGUAGE in local_groups:
            torch.distributed.all_reduce(tokens, group=local_groups[LANGUAGE].dp_cp)
        # ranks of the encoder count 0 tokens: the maximum over the world gives them the language model's number
        torch.distributed.all_reduce(tokens, op=torch.distributed.ReduceOp.MAX)
        for module in model.wrapped.values():
            module.scale_gradients(1.0 / tokens.clamp(min=1))


def reject_unsupported(config: MimoModelConfig) -> None:
    """Reject settings that per-module parallelism does not support.

    Raises:
        ModelConfigError: with all reasons.
    """
    problems = []
    if not config.calculate_per_token_loss:
        problems.append(
            "model.calculate_per_token_loss: is off, because the encoder's gradients are divided by the tokens of the "
            "language model. Switch it on."
        )
    problem = unsupported_settings([getattr(config, name) for name in REQUIRED_SETTINGS])
    if problem is not None:
        problems.append(
            f"model: {problem}, because per-module parallelism supports tensor and data parallelism in "
            "float32 only. Unset them, or build the model with MimoModelProvider."
        )
    if problems:
        raise ModelConfigError(problems)
