"""A model that sees whose two modules have ranks and layouts of their own: encoder here, language model there.

Where the ranks are the same, Megatron Core exchanges what the encoder says between the two layouts; where they differ,
it is sent over a bridge, and the two modules are the stages of a pipeline. No process-wide groups are needed.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import torch
from megatron.core import tensor_parallel
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.hyper_comm_grid import HyperCommGrid
from megatron.core.models.mimo import MimoModel
from megatron.core.models.mimo import MimoModelConfig as MegatronMimoConfig
from megatron.core.models.mimo.config.role import MIMO_LANGUAGE_MODULE_KEY as LANGUAGE
from megatron.core.models.mimo.optimizer import MimoOptimizer, get_mimo_optimizer
from megatron.core.optimizer import OptimizerConfig
from megatron.core.pipeline_parallel.multimodule_communicator import MultiModulePipelineCommunicator
from megatron.core.pipeline_parallel.schedules import (
    forward_backward_no_pipelining,
    forward_backward_pipelining_without_interleaving,
)
from megatron.core.process_groups_config import MultiModuleProcessGroupCollection, ProcessGroupCollection
from megatron.core.transformer.enums import ModelType
from megatron.core.transformer.transformer_config import TransformerConfig

from mb_models import mimo_rules
from mb_models.config import GPTModelConfig
from mb_models.gpt import LayerSpec
from mb_models.mimo import VISION, MimoModelProvider, without_notices
from mb_models.mimo_config import MimoModelConfig, encoder_section, projection_section
from mb_models.rules import ModelConfigError
from mb_models.transformer import refuse_broken, transformer_config

DENSE = {
    "tp": ["tp"],
    "cp": ["cp"],
    "dp": ["dp"],
    "pp": ["pp"],
    "dp_cp": ["dp", "cp"],
    "tp_cp": ["tp", "cp"],
    "mp": ["tp", "pp"],
    "tp_dp_cp": ["tp", "dp", "cp"],
    "intra_dist_opt": ["tp", "cp", "dp", "pp"],
}
EXPERT = {
    "ep": ["ep"],
    "expt_tp": ["expt_tp"],
    "expt_dp": ["expt_dp"],
    "tp_ep": ["expt_tp", "ep"],
    "tp_ep_pp": ["expt_tp", "ep", "pp"],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleRanks:
    """The ranks of a module: so many in a row, and how they share it."""

    first: int = 0
    tensor_parallel_size: int = 1
    data_parallel_size: int = 1

    @property
    def ranks(self) -> range:
        """All of them."""
        return range(self.first, self.first + self.tensor_parallel_size * self.data_parallel_size)


class ModulesProvider(MimoModelProvider):
    """Configures each module for its own tensor-parallel ranks; the section's number is the language model's."""

    def __init__(self, config: MimoModelConfig, *, vision_tensor_parallel_size: int, **settings: Any) -> None:
        self._seen = replace(config, tensor_model_parallel_size=vision_tensor_parallel_size)
        super().__init__(config, **settings)

    def _transformer_config(self) -> TransformerConfig:
        refuse_broken(self._seen, device=self.device, rules=mimo_rules.RULES)
        self.encoder = transformer_config(encoder_section(self._seen), device=self.device)
        self.projection = transformer_config(projection_section(self._seen), device=self.device)
        text = {item.name: getattr(self.config, item.name) for item in fields(GPTModelConfig)}
        return transformer_config(GPTModelConfig(**text), device=self.device)


class MimoModules:
    """Builds, wraps and runs a model that sees, on ranks of its modules. Every rank of the world makes the same calls.

    At the end, and not before, `model.destroy()` frees the process groups over which modules on the same ranks
    exchange; nothing else does. Those of a bridge Megatron keeps as long as the process lives.

    Args:
        config: the section; its tensor-parallel size is not read.
        vision: ranks of encoder and projection.
        language: ranks of the language model, the same or none of them.
        layer_spec: what the layers of both transformers are made of.
        device: where parameters are.
        backend: of the process groups.
        tokenizer_vocab_size: as for `MimoModelProvider`.

    Attributes:
        groups: module -> process groups, for the modules of this rank.
        transformer: Megatron's configuration of the language model.

    Raises:
        ModelConfigError: a rule is broken, or the modules cannot stand on these ranks.
    """

    def __init__(
        self,
        config: MimoModelConfig,
        *,
        vision: ModuleRanks,
        language: ModuleRanks,
        layer_spec: LayerSpec,
        device: torch.device,
        backend: str,
        tokenizer_vocab_size: int | None = None,
    ) -> None:
        self._ranks = {VISION: vision, LANGUAGE: language}
        refuse(config, self._ranks, world_size=torch.distributed.get_world_size())
        self._provider = ModulesProvider(
            replace(
                config,
                tensor_model_parallel_size=language.tensor_parallel_size,
                moe_token_dispatcher_type="alltoall",  # another would refuse parts of unequal length
                transformer={**config.transformer, "variable_seq_lengths": True},
            ),
            vision_tensor_parallel_size=vision.tensor_parallel_size,
            layer_spec=layer_spec,
            device=device,
            tokenizer_vocab_size=tokenizer_vocab_size,
        )
        self.transformer = self._provider.transformer
        opened = {name: open_groups(ranks, backend=backend) for name, ranks in self._ranks.items()}
        self._grids = {name: grid for name, (grid, _) in opened.items()}
        self._all_groups = {name: groups for name, (_, groups) in opened.items()}
        here = torch.distributed.get_rank()
        self.groups = {
            name: groups for name, groups in self._all_groups.items() if here in self._ranks[name].ranks
        }

    @property
    def apart(self) -> bool:
        """Whether the modules are on different ranks."""
        return self._ranks[VISION].ranks != self._ranks[LANGUAGE].ranks

    def provide(self, *, seed: int) -> MimoModel:
        """Build this rank's modules, with weights drawn from `seed`; replicas are made alike by `wrap`.

        Seeds torch's generator anew, alike on all ranks, and Megatron's tracker, for each rank of the world otherwise:
        a rank may have one place among the tensor-parallel ranks of the encoder and another among the language model's.
        """
        here = torch.distributed.get_rank()
        torch.manual_seed(seed)
        tensor_parallel.model_parallel_cuda_manual_seed(seed, tp_rank=here, ep_rank=0, etp_rank=here)
        with without_notices():
            model = MimoModel(
                MegatronMimoConfig(
                    language_model_spec=self._provider.language_spec(self._all_groups[LANGUAGE]),
                    modality_submodules_spec={VISION: self._provider.vision_spec(self._all_groups[VISION])},
                    special_token_ids={VISION: self._provider.config.image_token_id},
                    module_to_grid_map=self._grids,
                )
            )
        model.model_type = ModelType.encoder_or_decoder
        for parameter in model.parameters():
            tensor_parallel.set_defaults_if_not_set_tensor_model_parallel_attributes(parameter)
        return model.to(self._provider.device)

    def wrap(self, model: MimoModel, ddp: DistributedDataParallelConfig) -> None:
        """Wrap each module in Megatron's data parallelism, in place, and give replicas the weights of the first.

        `ddp` is not changed: Megatron settles its buckets in a copy for each module.

        Raises:
            ValueError: `ddp` asks for overlapped exchange.
        """
        if ddp.overlap_grad_reduce or ddp.overlap_param_gather:
            raise ValueError(
                "ddp.overlap_grad_reduce, ddp.overlap_param_gather: at least one is on "
                f"({ddp.overlap_grad_reduce}, {ddp.overlap_param_gather}), because nothing starts the exchange of two "
                "modules in time. Switch both off."
            )
        if LANGUAGE in self.groups:
            model.language_model = DistributedDataParallel(
                self.transformer, copy.copy(ddp), model.language_model, pg_collection=self.groups[LANGUAGE]
            )
        if VISION in self.groups:
            model.modality_submodules[VISION] = DistributedDataParallel(
                self._provider.encoder,
                copy.copy(ddp),
                model.modality_submodules[VISION],
                pg_collection=self.groups[VISION],
            )
        for module in self._wrapped(model).values():
            module.broadcast_params()
        self.transformer.finalize_model_grads_func = partial(self._finalize, model)

    def optimizer(self, model: MimoModel, config: OptimizerConfig) -> MimoOptimizer:
        """Build the optimizers of this rank's modules, with one gradient norm over all of them."""
        return get_mimo_optimizer(model, config)

    def forward_backward(self) -> Callable[..., Any]:
        """Return the schedule, which lacks what `forward_backward_no_pipelining` of Megatron Core takes by name.

        It returns reports on ranks of the language model only. Call this once: on different ranks each call opens the
        bridge, which is collective over the world.

        Every rank gives the schedule an iterator of microbatches as `MimoForwardStep` takes them, with all keys, and
        the same number of them. On different ranks these are the rows of the module's data-parallel rank. On the same
        ranks text (`tokens`, `labels`, `loss_mask`, `position_ids`) has the rows of the language model's data-
        parallel rank, and `images` those of the encoder's, of the same microbatch: rank r of n has the r-th of n
        equal parts. The rows of a whole microbatch divide by the larger of the two data-parallel sizes.
        """
        if not self.apart:
            return partial(forward_backward_no_pipelining, pg_collection=self.groups[LANGUAGE])
        bridge = MultiModulePipelineCommunicator(
            self._grids,
            {VISION: [LANGUAGE], LANGUAGE: []},
            self.transformer,
            dim_mapping={"s": 0, "b": 1, "h": 2},
            module_output_ndim={VISION: 2},
        )
        return partial(
            forward_backward_pipelining_without_interleaving,
            p2p_communicator=bridge,
            pg_collection=MultiModuleProcessGroupCollection(
                module_pgs=self.groups,
                language_model_module_name=LANGUAGE if LANGUAGE in self.groups else None,
            ),
        )

    def _wrapped(self, model: MimoModel) -> Mapping[str, DistributedDataParallel]:
        found = {LANGUAGE: model.language_model, **dict(model.modality_submodules.items())}
        return {name: found[name] for name in self.groups}

    def _finalize(
        self,
        model: MimoModel,
        chunks: Sequence[torch.nn.Module],
        num_tokens: torch.Tensor | None = None,
        *,
        pg_collection: object = None,
        force_all_reduce: bool = False,
    ) -> None:
        """Add up the gradients of each module's replicas, and divide by the tokens, of which the encoder knows none.

        The schedule hands over the groups of one module, or of both: those of each module are known here.
        """
        modules = self._wrapped(model)
        for name, module in modules.items():
            finalize_model_grads(
                [module], None, pg_collection=self.groups[name], force_all_reduce=force_all_reduce
            )
        device = next(model.parameters()).device
        tokens = torch.zeros(1, device=device) if num_tokens is None else num_tokens.reshape(1).float()
        if LANGUAGE in self.groups:
            torch.distributed.all_reduce(tokens, group=self.groups[LANGUAGE].dp_cp)
        torch.distributed.all_reduce(tokens, op=torch.distributed.ReduceOp.MAX)
        for module in modules.values():
            module.scale_gradients(1.0 / tokens.clamp(min=1))


def refuse(config: MimoModelConfig, ranks: Mapping[str, ModuleRanks], *, world_size: int) -> None:
    """Refuse what modules on ranks of their own cannot do.

    Raises:
        ModelConfigError: with all reasons.
    """
    vision, language = ranks[VISION].ranks, ranks[LANGUAGE].ranks
    problems = _sizes_that_do_not_fit(ranks[VISION], ranks[LANGUAGE])
    if vision != language and {*vision} & {*language}:
        problems.append(
            f"vision, language: share some of ranks {list(vision)} and {list(language)}, because a rank would have to "
            "wait for itself. Give both the same ranks, or different ones."
        )
    if {*vision, *language} != {*range(world_size)}:
        problems.append(
            f"vision, language: are on ranks {sorted({*vision, *language})} of {world_size}, because every process "
            "takes part. Use all of them, and no others."
        )
    if not config.calculate_per_token_loss:
        problems.append(
            "model.calculate_per_token_loss: is off, because the encoder's gradients are divided by the tokens of the "
            "language model. Switch it on."
        )
    split = [
        f"{name}={getattr(config, name)}"
        for name, whole in (
            ("sequence_parallel", False),
            ("context_parallel_size", 1),
            ("num_moe_experts", None),
            ("bf16", False),
            ("fp16", False),
            ("fp8", None),
            ("fp4", None),
        )
        if getattr(config, name) != whole
    ]
    if split:
        problems.append(
            f"model: {', '.join(split)}, because modules on ranks of their own have tensor and data parallelism in "
            "float32 only. Unset them, or build the model with MimoModelProvider."
        )
    if problems:
        raise ModelConfigError(problems)


def _sizes_that_do_not_fit(vision: ModuleRanks, language: ModuleRanks) -> list[str]:
    """Return what is wrong with the sizes of two modules."""
    problems = [
        f"{name}: tensor_parallel_size={ranks.tensor_parallel_size}, data_parallel_size={ranks.data_parallel_size}, "
        "because each is a number of ranks. Use 1 or more."
        for name, ranks in (("vision", vision), ("language", language))
        if min(ranks.tensor_parallel_size, ranks.data_parallel_size) < 1
    ]
    sizes = sorted((vision.data_parallel_size, language.data_parallel_size))
    if not problems and sizes[1] % sizes[0]:
        problems.append(
            f"vision, language: data_parallel_size={vision.data_parallel_size} and {language.data_parallel_size}, "
            "because a replica of one takes the pictures of whole replicas of the other. Let one size divide the other."
        )
    return problems


def open_groups(ranks: ModuleRanks, *, backend: str) -> tuple[HyperCommGrid, ProcessGroupCollection]:
    """Open all process groups of a module. Collective over the world; ranks outside get None for each group."""
    tp, dp = ranks.tensor_parallel_size, ranks.data_parallel_size
    grid = HyperCommGrid([tp, 1, dp, 1], ["tp", "cp", "dp", "pp"], rank_offset=ranks.first, backend=backend)
    grid.register_view("expert", [tp, 1, dp, 1], ["expt_tp", "ep", "expt_dp", "pp"], shared_dims=["pp"])
    groups = ProcessGroupCollection()
    for name, dims in DENSE.items():
        setattr(groups, name, grid.create_pg(dims))
    for name, dims in EXPERT.items():
        setattr(groups, name, grid.create_pg(dims, view="expert"))
    groups.intra_dp_cp, groups.intra_expt_dp, groups.inter_dist_opt = groups.dp_cp, groups.expt_dp, None
    groups.embd = groups.pos_embd = groups.pp
    return grid, groups
