"""Faults of rotary positions: empty sequences of packs; YaRN's part of a head that is rotated, and its factor."""

from collections.abc import Callable
from typing import Any

from mb_guard.fault import Fault, Function, Patch, Settings, around
from mb_guard.faults.rewriting import rewritten

_EMBEDDINGS = "megatron.core.models.common.embeddings"
_TESTS = "packages/mb-guard/tests/test_rotary.py"


@around
def rotate_a_part(
    init: Function, self: Any, kv_channels: int, rotary_percent: float = 1.0, *args: Any, **options: Any
) -> None:
    """Rotate the first `rotary_percent` of each head, as other rotary embeddings do."""
    init(self, int(kv_channels * rotary_percent), 1.0, *args, **options)


@around
def scale_fused_packs(
    apply: Function,
    heads: Any,
    rotation: Any,
    config: Any,
    cu_seqlens: Any = None,
    mscale: float = 1.0,
    *args: Any,
    **options: Any,
) -> Any:
    """Multiply what the fused kernel has rotated by YaRN's factor; it takes none for packed sequences."""
    rotated = apply(heads, rotation, config, cu_seqlens, mscale, *args, **options)
    return (
        _scaled(rotated, rotation, mscale) if config.apply_rope_fusion and cu_seqlens is not None else rotated
    )


def scale_fused_projection(forward: Function) -> Function:
    """Multiply queries and keys that `fused_single_qkv_rope` has rotated by YaRN's factor."""
    return rewritten(
        forward,
        ("= apply_fused_qkv_rotary_pos_emb(", "= mb_guard_scale(apply_fused_qkv_rotary_pos_emb, self)("),
        mb_guard_scale=_scale_queries_and_keys,
    )


def _scale_queries_and_keys(fused: Function, attention: Any) -> Callable[..., tuple[Any, Any, Any]]:
    def scaled(mixed: Any, query_rotation: Any, key_rotation: Any, sizes: Any) -> tuple[Any, Any, Any]:
        query, key, value = fused(mixed, query_rotation, key_rotation, sizes)
        factor = attention._yarn_concentration_factor
        return _scaled(query, query_rotation, factor), _scaled(key, key_rotation, factor), value

    return scaled


def _scaled(heads: Any, rotation: Any, factor: float) -> Any:
    """Multiply the rotated part of heads; the rest of a head has no positions, and no factor."""
    import torch

    part = rotation.size(-1)
    return heads if factor == 1.0 else torch.cat((heads[..., :part] * factor, heads[..., part:]), dim=-1)


@around
def rotate_nothing(rotate: Function, heads: Any, interleaved: bool) -> Any:
    """Return an empty sequence as it is."""
    return rotate(heads, interleaved) if heads.numel() else heads


def _yarn(settings: Settings) -> bool:
    return bool(settings.position_embedding_type == "yarn")


FAULTS = (
    Fault(
        id="empty-sequence-not-rotated",
        effect="crash",
        summary="rotary_interleaved cannot rotate a pack with an empty sequence, as at the end of packs whose "
        "cu_seqlens are padded to one length.",
        shows="RuntimeError: cannot reshape tensor of 0 elements, in the first step.",
        action="put right",
        test=f"{_TESTS}::test_a_pack_with_an_empty_sequence_is_rotated",
        met=lambda settings: bool(settings.rotary_interleaved),
        patches=(
            Patch(
                wrap=rotate_nothing,
                module=f"{_EMBEDDINGS}.rope_utils",
                target="_rotate_half",
                sources=("92131483c386b14f",),
            ),
        ),
    ),
    Fault(
        id="yarn-rotates-whole-heads",
        effect="wrong number",
        summary="YaRN ignores rotary_percent: it rotates whole heads, with the frequencies of their full width.",
        shows="Silent: of a head of 16 with rotary_percent=0.5, 16 values are rotated instead of 8; the second pair "
        "turns by 0.22 per token instead of 0.06.",
        action="put right",
        test=f"{_TESTS}::test_yarn_rotates_a_part_of_each_head",
        met=lambda settings: _yarn(settings) and settings.rotary_percent not in (None, 1.0),
        patches=(
            Patch(
                wrap=rotate_a_part,
                module=f"{_EMBEDDINGS}.yarn_rotary_pos_embedding",
                target="YarnRotaryEmbedding.__init__",
                sources=("2fa24035df4921b6",),
            ),
        ),
    ),
    Fault(
        id="yarn-factor-lost-in-fusion",
        effect="wrong number",
        summary="YaRN's factor of queries and keys is lost where fused kernels rotate them: those of packed sequences "
        "with apply_rope_fusion, and all with fused_single_qkv_rope.",
        shows="Silent: the scores of attention are divided by the square of the factor, 1.81 for a scaling of 32; "
        "the unfused rotation of the same model has it.",
        action="put right",
        test=f"{_TESTS}::test_fused_rotation_of_packs_has_the_factor",
        met=lambda settings: (
            _yarn(settings) and bool(settings.apply_rope_fusion or settings.fused_single_qkv_rope)
        ),
        patches=(
            Patch(
                wrap=scale_fused_packs,
                module=f"{_EMBEDDINGS}.rope_utils",
                target="apply_rotary_pos_emb",
                sources=("f550ca2c303201b2",),
            ),
            Patch(
                wrap=scale_fused_projection,
                module="megatron.core.transformer.attention",
                target="Attention.forward",
                sources=("8958baaefaffd318",),
            ),
        ),
    ),
)
