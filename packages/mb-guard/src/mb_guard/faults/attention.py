"""Faults of attention and of layers in its place: masks, positions and borders that are ignored, wrong sums."""

import copy
import dataclasses
import functools
import inspect
from types import ModuleType
from typing import Any

from mb_guard.fault import Fault, Function, Patch, Settings, around
from mb_guard.faults.rewriting import rewritten

# Two faults are of this function. Each is found by a text that the other leaves, so that either may be applied alone.
_FINALIZE: dict[str, Any] = {
    "module": "megatron.core.distributed.finalize_model_grads",
    "target": "_allreduce_non_tensor_model_parallel_grads",
    "sources": ("59a4d77616f3a9ec",),
}
_TESTS = "packages/mb-guard/tests/test_attention.py"


def window_and_mask(forward: Function) -> Function:
    """Hide what either the sliding window or the caller's mask hides."""
    return rewritten(
        forward,
        (
            "mask = get_sliding_window_causal_mask(sq, sk, self.window_size)",
            "window = get_sliding_window_causal_mask(sq, sk, self.window_size)\n"
            "        mask = window if mask is None else mask | window",
        ),
    )


@around
def complete_latent_norms(reduce: Function, model: Any, config: Any, tp_group: Any = None) -> Any:
    """Leave the norm of latent queries out of the sum over tensor-parallel ranks without sequence parallelism.

    Each rank has its complete gradient: the projection behind it sums the gradient of its input. Megatron selects the
    parameters by name, for norms of heads, which the ranks share.
    """
    if config.qk_layernorm and config.multi_latent_attention and not config.sequence_parallel:
        config = copy.copy(config)
        config.qk_layernorm = False
    return reduce(model, config, tp_group)


@around
def split_sinks(init: Function, self: Any, *args: Any, **kwargs: Any) -> None:
    """Mark the sinks of the heads of this rank as a part, so that the gradient norm counts those of all ranks."""
    init(self, *args, **kwargs)
    sinks: Any = getattr(self, "softmax_offset", None)
    if getattr(sinks, "requires_grad", False) and not hasattr(sinks, "tensor_model_parallel"):
        sinks.tensor_model_parallel, sinks.partition_dim, sinks.partition_stride = True, 0, 1


def _has_transformer_engine(module: ModuleType) -> bool:
    return bool(module.__dict__["HAVE_TE"])


def pass_tensor_parallel_group(init: Function) -> Function:
    """Give the projections of cross attention the tensor-parallel group of the module."""
    signature = inspect.signature(init)

    @functools.wraps(init)
    def patched(*args: Any, **kwargs: Any) -> None:
        call = signature.bind(*args, **kwargs)
        if (groups := call.arguments.get("pg_collection")) is not None:
            parts = call.arguments["submodules"]
            call.arguments["submodules"] = dataclasses.replace(
                parts,
                linear_q=functools.partial(parts.linear_q, tp_group=groups.tp),
                linear_kv=functools.partial(parts.linear_kv, tp_group=groups.tp),
            )
        init(*call.args, **call.kwargs)

    return patched


@around
def mark_output_norm(init: Function, self: Any, *args: Any, **kwargs: Any) -> None:
    """Mark the output norm of a gated delta net: each rank has the gradient from its own heads."""
    init(self, *args, **kwargs)
    for parameter in self.out_norm.parameters():
        parameter.mb_guard_part = True


@around
def draw_own_convolution(reset: Function, self: Any) -> None:
    """Draw the convolution of a gated delta net again, in the random state of this tensor-parallel rank."""
    from megatron.core.tensor_parallel import get_cuda_rng_tracker

    reset(self)
    if self.config.perform_initialization and self.conv_init is None and self.tp_size > 1:
        with get_cuda_rng_tracker().fork():
            self.conv1d.reset_parameters()


def sum_marked_gradients(reduce: Function) -> Function:
    """Sum the gradients of marked parameters over tensor-parallel ranks, also without sequence parallelism."""
    return rewritten(
        reduce,
        (
            "config.qk_layernorm and (",
            'getattr(param, "mb_guard_part", False)) or (\n                    config.qk_layernorm and (',
        ),
    )


@around
def number_sequences(train: Function, self: Any, projected: Any, packed_seq_params: Any = None) -> Any:
    """Number the sequences of a pack where its maker has not; what is behind the last counts as one more."""
    import torch

    if packed_seq_params is not None and packed_seq_params.seq_idx is None:
        packed_seq_params = copy.copy(packed_seq_params)
        padded = packed_seq_params.cu_seqlens_q_padded
        ends = (packed_seq_params.cu_seqlens_q if padded is None else padded)[1:]
        positions = torch.arange(len(projected), dtype=ends.dtype, device=ends.device)
        packed_seq_params.seq_idx = torch.bucketize(positions, ends, right=True, out_int32=True)[None]
    return train(self, projected, packed_seq_params)


def _resets_attention(settings: Settings) -> bool:
    return bool(settings.reset_attention_mask) and (
        settings.transformer_impl == "transformer_engine" or settings.create_attention_mask is False
    )


def _resets_rotary_positions(settings: Settings) -> bool:
    return bool(settings.reset_position_ids) and settings.position_embedding_type in ("rope", "yarn")


FAULTS = (
    Fault(
        id="delta-net-norm-not-summed",
        effect="wrong number",
        summary="The output norm of gated delta nets is shared by the heads of all tensor-parallel ranks, but its "
        "gradient is only summed over them with sequence parallelism.",
        shows="Silent: each rank has the gradient from its own heads, so that the copies of the norm drift apart.",
        action="put right",
        report="https://github.com/NVIDIA/Megatron-LM/issues/7452",
        test=f"{_TESTS}::test_the_norm_of_a_delta_net_has_the_gradient_of_one_rank",
        patches=(
            Patch(
                wrap=mark_output_norm,
                module="megatron.core.ssm.gated_delta_net.common",
                target="_GDNBase.__init__",
                sources=("4c3645de262c18ac",),
            ),
            Patch(wrap=sum_marked_gradients, **_FINALIZE),
        ),
    ),
    Fault(
        id="equal-convolutions-on-all-ranks",
        effect="wrong number",
        summary="All tensor-parallel ranks draw the same convolutions for their channels of a gated delta net.",
        shows="Silent: with 2 ranks each kernel starts twice, as it does not on one.",
        action="put right",
        test=f"{_TESTS}::test_ranks_draw_different_convolutions",
        met=lambda settings: (
            settings.hybrid_layer_pattern is not None and (settings.tensor_model_parallel_size or 1) > 1
        ),
        patches=(
            Patch(
                wrap=draw_own_convolution,
                module="megatron.core.ssm.gated_delta_net.common",
                target="_GDNBase.reset_parameters",
                sources=("4ad232c6c2783f89",),
            ),
        ),
    ),
    Fault(
        id="states-cross-packs",
        effect="wrong number",
        summary="Mamba layers carry their states from one packed sequence to the next unless PackedSeqParams has "
        "total_tokens, which is optional.",
        shows="Silent: attention ends at the borders, and other sequences of the pack change the outputs of hybrids.",
        action="put right",
        report="https://github.com/NVIDIA-NeMo/Megatron-Bridge/issues/3474",
        test=f"{_TESTS}::test_states_end_with_their_sequence",
        met=lambda settings: settings.hybrid_layer_pattern is not None,
        patches=(
            Patch(
                wrap=number_sequences,
                module="megatron.core.ssm.mamba_mixer",
                target="MambaMixer._ssm_training",
                sources=("5e3d462411327f55",),
            ),
        ),
    ),
    Fault(
        id="cross-attention-group",
        effect="wrong number",
        summary="The projections of cross attention use the global tensor-parallel group instead of that of the "
        "process groups that the module is given.",
        shows="Silent, with process groups that are passed explicitly: the projections communicate with other ranks.",
        action="put right",
        report="https://github.com/NVIDIA/Megatron-LM/issues/7452",
        test=f"{_TESTS}::test_cross_attention_has_its_own_group",
        patches=(
            Patch(
                wrap=pass_tensor_parallel_group,
                module="megatron.core.transformer.attention",
                target="CrossAttention.__init__",
                sources=("4fc7cf74c289fee3",),
            ),
        ),
    ),
    Fault(
        id="window-without-mask",
        effect="wrong number",
        summary="A sliding window in unfused attention throws the caller's attention mask away.",
        shows="Silent: outputs differ by 0.6 from a softmax over the places that both allow (transformer_impl=local "
        "with window_size, learnable sinks).",
        action="put right",
        report="https://github.com/NVIDIA/Megatron-LM/issues/7039",
        test=f"{_TESTS}::test_a_window_keeps_the_mask",
        patches=(
            Patch(
                wrap=window_and_mask,
                module="megatron.core.fusions.fused_softmax",
                target="FusedScaleMaskSoftmax.forward_torch_softmax",
                sources=("feb7718fac5179c2",),
            ),
        ),
    ),
    Fault(
        id="latent-norm-summed-twice",
        effect="wrong number",
        summary="Multi-latent attention with qk_layernorm under tensor parallelism without sequence parallelism sums "
        "the gradient of q_layernorm over the ranks, each of which has all of it.",
        shows="Silent: the gradient of q_layernorm is multiplied by tensor_model_parallel_size.",
        action="put right",
        report="https://github.com/modelscope/mcore-bridge/pull/101",
        test=f"{_TESTS}::test_the_norm_of_latent_queries_has_the_gradient_of_one_rank",
        patches=(Patch(wrap=complete_latent_norms, **_FINALIZE),),
    ),
    Fault(
        id="sinks-missing-in-gradient-norm",
        effect="wrong number",
        summary="Learnable attention sinks are split over tensor-parallel ranks, but not marked so: the gradient norm "
        "counts those of the first rank only.",
        shows="Silent: the norm, and the clipping by it, leave out the sinks of the other ranks.",
        action="put right",
        report="https://github.com/NVIDIA/Megatron-LM/pull/7530",
        test=f"{_TESTS}::test_the_gradient_norm_has_the_sinks_of_all_ranks",
        patches=(
            Patch(
                wrap=split_sinks,
                module="megatron.core.transformer.dot_product_attention",
                target="DotProductAttention.__init__",
                sources=("5c542164cfdbef14",),
            ),
            Patch(
                wrap=split_sinks,
                module="megatron.core.extensions.transformer_engine",
                target="TEDotProductAttention.__init__",
                sources=("075477a709825092",),
                needed=_has_transformer_engine,
            ),
        ),
    ),
    Fault(
        id="reset-attention-mask",
        effect="wrong number",
        summary="reset_attention_mask has no effect: causal layers of Transformer Engine ignore the mask, and "
        "Megatron-LM does not fetch it from the dataset by default.",
        shows="Silent: documents of a sequence attend to previous ones, loss 5.965064 with and without, 5.969476 with "
        "attention that ends at the borders.",
        action="refuse",
        report="https://github.com/NVIDIA/Megatron-LM/issues/2357",
        test=f"{_TESTS}::test_settings_without_effect_are_known",
        met=_resets_attention,
        advice="Train on packed sequences, whose borders are passed as cu_seqlens, or set reset_attention_mask=false.",
    ),
    Fault(
        id="reset-position-ids",
        effect="wrong number",
        summary="reset_position_ids has no effect with rotary positions: the model counts from the start of the row.",
        shows="Silent: outputs with and without it are equal.",
        action="warn",
        report="https://github.com/NVIDIA/Megatron-LM/issues/453",
        test=f"{_TESTS}::test_settings_without_effect_are_known",
        met=_resets_rotary_positions,
        advice="Set reset_position_ids=false: rotary attention depends on distances only. To separate documents, train "
        "on packed sequences.",
    ),
)
