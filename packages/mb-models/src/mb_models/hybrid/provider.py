"""Provider of hybrid models: one chunk, or all chunks of a pipeline rank."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import fields
from importlib.util import find_spec
from typing import Any

import torch
from megatron.core.models.hybrid.hybrid_model import HybridModel
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.utils import scaled_init_method_normal

from mb_models.config import TransformerFields
from mb_models.errors import ModelConfigError
from mb_models.gpt.transformer import convert_fields, reject_violations
from mb_models.hybrid.config import GatedDeltaFields, MambaModelConfig, StateSpaceFields, mtp_layers
from mb_models.provider import ModelProvider, drop_unused_output_weight
from mb_models.training.chunks import StackSpec
from mb_models.training.forward_step import GPTForwardStep


class MambaModelProvider(ModelProvider[MambaModelConfig, StackSpec, HybridModel]):
    """Builder of hybrid chunks that share one TransformerConfig, under explicit process groups."""

    def _transformer_config(self) -> TransformerConfig:
        if self.device.type == "cuda":
            require_kernels(self.config.hybrid_layer_pattern)
        return hybrid_transformer_config(self.config, device=self.device)

    def _build(
        self,
        *,
        pre_process: bool,
        post_process: bool,
        vp_stage: int | None,
        groups: ProcessGroupCollection,
    ) -> HybridModel:
        config = self.config
        spec = self._layer_spec(self.transformer, vp_stage=vp_stage, pp_rank=groups.pp.rank())
        chunk = HybridModel(
            **self._arguments(pre_process=pre_process, post_process=post_process, groups=groups),
            hybrid_stack_spec=_with_chunks(spec, config.mamba_chunk_size),
            hybrid_layer_pattern=config.hybrid_layer_pattern,
            max_sequence_length=config.max_position_embeddings or config.seq_length,
            position_embedding_type=config.position_embedding_type,
            rotary_base=config.rotary_base,
            vp_stage=vp_stage,
        )
        self._exclude_padding(chunk, config.unpadded_vocab_size, groups=groups)
        drop_unused_output_weight(chunk)
        return chunk


def _with_chunks(spec: Any, size: int) -> Any:
    """Return the layers with the chunk size of Mamba's scan, which Megatron's mixer takes as an argument."""
    spec = deepcopy(spec)
    mixer = spec.submodules.mamba_layer.submodules.mixer
    mixer.params = {**mixer.params, "chunk_size": size}
    return spec


KERNELS = {"M": ("mamba_ssm", "mamba-ssm"), "G": ("fla", "flash-linear-attention")}
"""Letter of a layer -> module and package of the kernels that it needs on a GPU."""


def require_kernels(pattern: str, *, installed: Callable[[str], object] = find_spec) -> None:
    """Reject layers whose kernels are not installed, before Megatron Core fails during construction.

    Raises:
        ModelConfigError: kernels are not installed; lists all of them.
    """
    problems = [
        f"model.hybrid_layer_pattern: has {letter} layers, but {package} is not installed, which they need on a GPU. "
        f"Install it (pip install {package}), or use other layers."
        for letter, (module, package) in KERNELS.items()
        if letter in pattern and installed(module) is None
    ]
    if problems:
        raise ModelConfigError(problems)


HybridModelProvider = MambaModelProvider
"""Alias with Megatron Core's newer name of the family."""

MambaForwardStep = GPTForwardStep
"""Hybrid chunks process the same batches as GPT chunks, and return the same losses."""

HybridForwardStep = GPTForwardStep
"""Alias with Megatron Core's newer name of the family."""


def hybrid_transformer_config(config: MambaModelConfig, *, device: torch.device) -> TransformerConfig:
    """Build Megatron's configuration of a hybrid model from its section; the section is not modified.

    The initial standard deviation of output layers is divided by the square root of the number of layers, not of twice
    that, because a layer of a hybrid is either a mixer or an MLP.

    Raises:
        ModelConfigError: as `mb_models.transformer_config`, or a rule on hybrid sections is violated.
    """
    reject_violations(config, device=device)
    initializers, shared = (
        {item.name: getattr(config, item.name) for kind in kinds for item in fields(kind)}
        for kinds in ((StateSpaceFields, GatedDeltaFields), (TransformerFields,))
    )
    start = scaled_init_method_normal(config.init_method_std, config.num_layers, multiplier=1.0)
    extra = {"output_layer_init_method": start, **initializers, **config.transformer}
    transformer = convert_fields(TransformerFields(**{**shared, "transformer": extra}), device=device)
    transformer.is_hybrid_model = True
    transformer.mtp_num_layers = len(mtp_layers(config.hybrid_layer_pattern)) or None
    return transformer


def hybrid_transformer_engine_spec(
    config: TransformerConfig, /, *, vp_stage: int | None = None, pp_rank: int | None = None
) -> object:
    """Return Megatron's stack of Transformer Engine's modules, for GPUs only.

    Mamba layers need mamba-ssm, gated-delta layers flash-linear-attention.

    Raises:
        ModuleNotFoundError: Transformer Engine is not installed.
    """
    if find_spec("transformer_engine") is None:
        raise ModuleNotFoundError(
            "hybrid_transformer_engine_spec: Transformer Engine is not installed, because mb-models does not require "
            "it. Install mb-models[te], or use mb_host.megatron.hybrid.host_hybrid_spec without a GPU."
        )
    from megatron.core.models.hybrid.hybrid_layer_specs import hybrid_stack_spec  # noqa: PLC0415 - needs the engine

    return hybrid_stack_spec
