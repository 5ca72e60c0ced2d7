"""Variants of layers, embedding and logits that Megatron Core does not have, put into its specs and chunks."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.attention import SelfAttention
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.multi_latent_attention import MLASelfAttention
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import TransformerLayer
from megatron.core.transformer.utils import is_layer_window_attention
from torch import Tensor

from mb_models.gpt.norms import AllHeadsRMSNorm, BiaslessLayerNorm, replace_norms, separate_norms
from mb_models.gpt.softcapped_attention import SoftcappedAttention
from mb_models.gpt.variant_fields import LayerVariantFields

LOCAL, GLOBAL = 0, 1
"""Positions of the two rotations in the tensor that all layers receive."""


class LocalGlobalRotaryEmbedding(torch.nn.Module):
    """Rotations of layers with a window, and of all others, stacked in one tensor of shape [2, S, 1, 1, D].

    Takes the place of Megatron's rotary embedding in a chunk; `layers_without_window` is the one it replaces.
    """

    def __init__(self, layers_without_window: RotaryEmbedding, layers_with_window: RotaryEmbedding) -> None:
        super().__init__()
        self.layers_without_window, self.layers_with_window = layers_without_window, layers_with_window

    def forward(self, length: int, **options: Any) -> torch.Tensor | tuple[torch.Tensor, float]:
        """Return both rotations of a sequence, with YaRN's factor if it has one; the arguments are Megatron's."""
        windowed, others = (
            self.layers_with_window(length, **options),
            self.layers_without_window(length, **options),
        )
        if isinstance(others, tuple):  # Megatron's YaRN, whose factor attention reads from the configuration
            rotation, factor = others
            return torch.stack((windowed, rotation)), factor
        return torch.stack((windowed, others))

    def get_rotary_seq_len(self, *arguments: Any, **options: Any) -> int:
        """Return the length of the sequence, as Megatron's does."""
        length: int = self.layers_without_window.get_rotary_seq_len(*arguments, **options)
        return length


class LocalGlobalSelfAttention(SelfAttention):  # type: ignore[misc] # Megatron Core has no types
    """Megatron's attention with the rotation of its layer, from the two that it receives."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        config = self.config
        self.windowed = is_layer_window_attention(
            config.window_size, config.window_attn_skip_freq, self.layer_number
        )
        if self.windowed:  # only the other layers are scaled by YaRN
            self._yarn_concentration_factor = 1.0

    def forward(
        self, *arguments: Any, rotary_pos_emb: torch.Tensor | None = None, **options: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Compute attention; `rotary_pos_emb` is that of `LocalGlobalRotaryEmbedding`."""
        if rotary_pos_emb is not None:
            rotary_pos_emb = rotary_pos_emb[LOCAL if self.windowed else GLOBAL]
        output: tuple[torch.Tensor, torch.Tensor | None] = super().forward(
            *arguments, rotary_pos_emb=rotary_pos_emb, **options
        )
        return output


class ParallelTransformerLayer(TransformerLayer):  # type: ignore[misc] # Megatron Core has no types
    """Megatron's layer with the sum x + attention(norm(x)) + mlp(norm(x)).

    The MLP has a norm of its own unless the specification has none before it; then it has that of attention, which is
    computed twice.
    """

    _layer_input: Tensor | None = None
    """Input of the layer, from the forward pass of attention to that of the MLP."""

    def _forward_attention(self, hidden_states: Tensor, *arguments: Any, **options: Any) -> Any:
        self._layer_input = hidden_states
        return super()._forward_attention(hidden_states, *arguments, **options)

    def _forward_pre_mlp_layernorm(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        """Return the input of the MLP, and the residual stream, to which attention is already added."""
        layer_input, self._layer_input = self._layer_input, None
        if isinstance(self.pre_mlp_layernorm, IdentityOp):
            return self.input_layernorm(layer_input), hidden_states
        return super()._forward_pre_mlp_layernorm(layer_input), hidden_states


Branch = tuple[Tensor, Tensor | None]
"""Output of attention or MLP, and its bias, which is not added yet."""

STORED_NAMES = {
    "self_attn_bda.norm.": "self_attention.linear_proj.post_layernorm.",
    "mlp_bda.norm.": "mlp.linear_fc2.post_layernorm.",
}
"""Prefixes of the norms after attention and MLP -> their prefixes in checkpoints, as in Megatron-Bridge."""


class BranchAdd(torch.nn.Module):
    """Norm and factor of the output of attention or MLP, before dropout and the residual addition.

    Takes the place of Megatron's function for the addition, which it calls.
    """

    def __init__(self, *, norm: Callable[[], torch.nn.Module] | None, multiplier: float) -> None:
        super().__init__()
        self.norm = None if norm is None else norm()
        self.multiplier = multiplier

    def forward(self, training: bool, fused: bool) -> Callable[[Branch, Tensor, float], Tensor]:
        """Return the function from the branch, the residual stream and the dropout probability to their sum."""
        return partial(self._add, get_bias_dropout_add(training, fused))

    def _add(
        self, add: Callable[[Branch, Tensor, float], Tensor], branch: Branch, residual: Tensor, dropout: float
    ) -> Tensor:
        output, bias = branch
        if bias is not None:
            output = output + bias
        if self.norm is not None:
            output = self.norm(output)
        if self.multiplier != 1.0:
            output = output * self.multiplier
        return add((output, None), residual, dropout)


def apply_layer_variants(
    block: TransformerBlockSubmodules,
    section: LayerVariantFields,
    *,
    config: TransformerConfig,
    tp_group: torch.distributed.ProcessGroup,
) -> TransformerBlockSubmodules:
    """Put the variants of a section into the specs of a stage's layers, in place and only once, and return them."""
    _apply_norms(block, section)
    specs = {id(spec): spec for spec in block.layer_specs}  # layers of one kind share a spec
    for spec in specs.values():
        layer = spec.submodules
        if section.residual_branches != "sequential":
            spec.module = ParallelTransformerLayer
        if section.residual_branches == "parallel_shared_norm":
            layer.pre_mlp_layernorm = IdentityOp
        if section.norm_position != "pre" or section.residual_multiplier != 1.0:
            _apply_branches(layer, section, config=config, norm=block.layer_norm)
        attention = layer.self_attention
        if section.rotary_base_local is not None:
            attention.module = LocalGlobalSelfAttention
        if section.attn_logit_softcapping is not None:
            attention.submodules.core_attention = ModuleSpec(
                module=SoftcappedAttention, params={"softcap": section.attn_logit_softcapping}
            )
        if section.qk_layernorm_scope == "all_heads" and config.qk_layernorm:
            for name, heads in (("q", config.num_attention_heads), ("k", config.num_query_groups)):
                norm = partial(AllHeadsRMSNorm, heads=heads, tp_group=tp_group)
                setattr(attention.submodules, f"{name}_layernorm", norm)
    return block


def _apply_norms(block: TransformerBlockSubmodules, section: LayerVariantFields) -> None:
    """Separate norms from linear layers if none are before them, if two layers need one, or if they have no bias."""
    shared = section.residual_branches == "parallel_shared_norm"
    if section.norm_position == "post" or shared or not section.layernorm_bias:
        separate_norms(block)
    if not section.layernorm_bias:
        replace_norms(block, BiaslessLayerNorm)


def _apply_branches(layer: Any, section: LayerVariantFields, *, config: TransformerConfig, norm: Any) -> None:
    """Put norms after attention and MLP, and the factor of both, into a layer's spec."""
    after = section.norm_position != "pre"
    build = partial(norm, config=config, hidden_size=config.hidden_size, eps=config.layernorm_epsilon)
    addition = ModuleSpec(
        module=BranchAdd,
        params={"norm": build if after else None, "multiplier": section.residual_multiplier},
    )
    layer.self_attn_bda = layer.mlp_bda = addition
    if section.norm_position == "post":
        layer.input_layernorm = layer.pre_mlp_layernorm = IdentityOp
    layer.sharded_state_dict_keys_map = {**layer.sharded_state_dict_keys_map, **STORED_NAMES}


def use_local_rotation(chunk: Any, section: Any, *, groups: ProcessGroupCollection) -> None:
    """Give the layers of a GPT chunk that have a window a rotary base of their own."""
    chunk.rotary_pos_emb = LocalGlobalRotaryEmbedding(
        chunk.rotary_pos_emb,
        RotaryEmbedding(
            kv_channels=chunk.config.kv_channels,
            rotary_percent=section.rotary_percent,
            rotary_interleaved=chunk.config.rotary_interleaved,
            rotary_base=section.rotary_base_local,
            use_cpu_initialization=chunk.config.use_cpu_initialization,
            cp_group=groups.cp,
        ),
    )


def scale_embedding(chunk: Any, factor: float) -> None:
    """Multiply the embeddings of a GPT chunk that has them."""
    if hasattr(chunk, "embedding"):
        # rounded once, as transformers does
        rounded = torch.tensor(factor, dtype=chunk.config.params_dtype).item()
        chunk.embedding.register_forward_hook(partial(_scaled_embedding, rounded))


def scale_logits(chunk: Any, factor: float, *, cap: float | None) -> None:
    """Multiply and cap the logits of a GPT chunk that has them.

    Both belong to the output layer, and end when it is replaced, such as by a value head.
    """
    if chunk.post_process:
        chunk.output_layer.register_forward_hook(partial(_scaled_logits, factor, cap))


def _scaled_embedding(factor: float, _module: torch.nn.Module, _inputs: object, output: Tensor) -> Tensor:
    return output * factor


def _scaled_logits(
    factor: float, cap: float | None, _module: torch.nn.Module, _inputs: object, output: Branch
) -> Branch:
    logits, bias = output
    if factor != 1.0:
        logits = logits * factor
    return (logits if cap is None else cap * torch.tanh(logits / cap)), bias


def use_uncompressed_queries(block: TransformerBlockSubmodules, config: TransformerConfig) -> None:
    """Replace latent attention in the specs of a stage's layers, in place, if queries are not compressed.

    These are queries as in DeepSeek-V2 Lite and Moonlight.
    """
    if config.multi_latent_attention and config.qk_layernorm and config.q_lora_rank is None:
        for spec in block.layer_specs:
            spec.submodules.self_attention.module = UncompressedQueryAttention


class UncompressedQueryAttention(MLASelfAttention):  # type: ignore[misc] # Megatron Core has no types
    """Megatron's latent attention, with a norm of the latent keys and values and none of the queries.

    With `qk_layernorm` and without `q_lora_rank`, Megatron Core 0.19.2 builds a norm of the hidden state into the
    projection of the queries, which no published model has, and which its own local layers do not support.
    """

    def _resolve_qk_norm_config(self, submodules: Any) -> dict[str, Any]:
        config = vars(self)["config"]
        self.config = copy.copy(config)
        self.config.q_lora_rank = config.hidden_size
        try:
            resolved = super()._resolve_qk_norm_config(submodules)
        finally:
            self.config = config
        return {**resolved, "linear_q_proj": submodules.linear_q_proj, "q_layernorm": IdentityOp}
