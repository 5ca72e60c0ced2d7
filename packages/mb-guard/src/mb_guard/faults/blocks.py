"""Faults of callers of layers that leave out what a transformer block does around them: final norm, random state."""

from typing import Any

from mb_guard.fault import Fault, Function, Patch, Settings, around
from mb_guard.faults.rewriting import rewritten

_TESTS = "packages/mb-guard/tests/test_blocks.py"


def normalize_after_dense_layer(build_callables: Function) -> Function:
    """Apply the final norm behind a dense last layer too."""
    return rewritten(
        build_callables,
        (
            "return layer._forward_mlp(*args, **kwargs)",
            "return mb_guard_final_norm(node, layer._forward_mlp(*args, **kwargs))",
        ),
        mb_guard_final_norm=_final_norm,
    )


def _final_norm(node: Any, hidden: Any) -> Any:
    norm = node.chunk_state.model.decoder.final_layernorm
    return hidden if norm is None or node.is_mtp or not node.is_last_layer else norm(hidden)


@around
def draw_on_each_rank(forward: Function, self: Any, *inputs: Any, **options: Any) -> Any:
    """Drop out from the random state of this tensor-parallel rank, as a transformer block does."""
    from megatron.core.tensor_parallel import get_cuda_rng_tracker

    state = getattr(self, "chunk_state", None)
    if not (self if state is None else state.model).config.sequence_parallel:
        return forward(self, *inputs, **options)
    with get_cuda_rng_tracker().fork():
        return forward(self, *inputs, **options)


def _drops_out_in_parts(settings: Settings) -> bool:
    dropout = (settings.hidden_dropout or 0) > 0 or (settings.attention_dropout or 0) > 0
    unforked = settings.hybrid_layer_pattern or settings.overlap_moe_expert_parallel_comm
    return dropout and bool(unforked) and bool(settings.sequence_parallel)


FAULTS = (
    Fault(
        id="final-norm-missing-in-overlap",
        effect="wrong number",
        summary="overlap_moe_expert_parallel_comm leaves out the final norm of the decoder where its last layer is "
        "dense, as with moe_layer_freq=2 and an even number of layers.",
        shows="Silent: the model is trained without its final norm, whose gradient is 0 (all gradients of a small "
        "model are off by 98 %), and evaluated with it.",
        action="put right",
        test=f"{_TESTS}::test_a_dense_last_layer_is_normalized",
        met=lambda settings: bool(settings.overlap_moe_expert_parallel_comm),
        patches=(
            Patch(
                wrap=normalize_after_dense_layer,
                module="megatron.core.models.gpt.fine_grained_callables",
                target="build_transformer_layer_callables",
                sources=("3075e142906337f1",),
            ),
        ),
    ),
    Fault(
        id="sequence-parallel-dropout",
        effect="wrong number",
        summary="With sequence parallelism, all tensor-parallel ranks draw the same dropout masks in hybrids and with "
        "overlap_moe_expert_parallel_comm.",
        shows="Silent: the masks of two ranks agree in all places, independent ones with p = 0.5 in half of them.",
        action="put right",
        test=f"{_TESTS}::test_ranks_draw_different_dropout_masks",
        met=_drops_out_in_parts,
        patches=tuple(
            Patch(
                wrap=draw_on_each_rank,
                module=f"megatron.core.models.{module}",
                target=target,
                sources=(source,),
            )
            for module, target, source in (
                ("hybrid.hybrid_block", "HybridStack.forward", "ea41e6a90d59f1b2"),
                ("common.utils", "TransformerLayerNode.forward_impl", "8f95fcbb7b55be0e"),
            )
        ),
    ),
)
