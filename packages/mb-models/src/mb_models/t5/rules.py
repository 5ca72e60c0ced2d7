"""Rules on the section of a T5, in addition to those for every family."""

from mb_models.hybrid.rules import family_rule
from mb_schema.rule_kinds import rule
from mb_schema.rules import Rule


def _some_layers(number: int | None, length: int, decoder_length: int) -> str | None:
    if (number is None or number >= 1) and min(length, decoder_length) >= 1:
        return None
    return f"is {number} with seq_length={length}, decoder_seq_length={decoder_length}"


def _one_stage(pp: int, vpp: int | None, decoder_length: int) -> str | None:
    return f"is {pp} (virtual stages: {vpp})" if pp > 1 or (vpp or 1) > 1 else None


def _whole_sequences(cp: int, decoder_length: int) -> str | None:
    return f"is {cp}" if cp > 1 else None


def _split_evenly(together: bool, tp: int, length: int, decoder_length: int) -> str | None:
    if not together or (length % tp == 0 and decoder_length % tp == 0):
        return None
    return f"{length} and {decoder_length} tokens are not divisible by tensor_model_parallel_size={tp}"


_PAIRED = ("model.decoder_seq_length", "dataset.decoder_seq_length")


def _same_pairs(number: str, first: str, second: str) -> Rule:
    """Return the rule that model and dataset are both for pairs of sequences, reported on the first field."""

    def differs(one: int | None, other: int | None) -> str | None:
        return (
            f"is {one}, but {second}={'null' if other is None else other}"
            if one not in (None, other)
            else None
        )

    return rule(
        number,
        (first, second),
        differs,
        why="only a T5 reads pairs of sequences, and its decoder writes the complete second one",
        fix="Give model and dataset the same decoder_seq_length: a T5ModelConfig with a T5DatasetConfig, a "
        "T5TextCorpusConfig or a custom section, and other models with other data.",
        fails=(128, None),
        passes=(128, 128),
    )


RULES: tuple[Rule, ...] = (
    family_rule(
        "TF01",
        ("encoder_num_layers", "seq_length", "decoder_seq_length"),
        _some_layers,
        why="an encoder without layers or a sequence without tokens cannot be built",
        fix="Set positive numbers.",
        fails=(0, 512, 128),
        passes=(None, 512, 128),
    ),
    family_rule(
        "TF02",
        ("pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size", "decoder_seq_length"),
        _one_stage,
        why="Megatron Core's schedules pass one tensor from stage to stage, while every stage of a decoder needs the "
        "encoder's output too, and the run would hang",
        fix="Set pipeline_model_parallel_size=1; use tensor parallelism.",
        fails=(2, None, 128),
        passes=(1, None, 128),
    ),
    family_rule(
        "TF03",
        ("context_parallel_size", "decoder_seq_length"),
        _whole_sequences,
        why="masks of encoder and cross-attention are not split over context-parallel ranks",
        fix="Set context_parallel_size=1.",
        fails=(2, 128),
        passes=(1, 128),
    ),
    family_rule(
        "TF04",
        ("sequence_parallel", "tensor_model_parallel_size", "seq_length", "decoder_seq_length"),
        _split_evenly,
        why="sequence parallelism gives each rank the same number of tokens of both sequences",
        fix="Change the lengths, or set sequence_parallel=false.",
        fails=(True, 2, 512, 101),
        passes=(True, 2, 512, 128),
    ),
    family_rule(
        "TF05",
        ("position_embedding_type", "decoder_seq_length"),
        lambda kind, decoder_length: (
            None if kind in ("learned_absolute", "rope") else f"{kind!r} is not supported"
        ),
        why="attention without Transformer Engine has no bias of relative positions, and would fail or ignore it",
        fix='Use "learned_absolute" or "rope".',
        fails=("relative", 128),
        passes=("rope", 128),
    ),
    family_rule(
        "TF06",
        ("num_moe_experts", "decoder_seq_length"),
        lambda experts, decoder_length: f"is {experts}" if experts is not None else None,
        why="T5 layers are dense",
        fix="Unset it.",
        fails=(4, 128),
        passes=(None, 128),
    ),
    family_rule(
        "TF07",
        ("qk_layernorm", "multi_latent_attention", "mtp_num_layers", "decoder_seq_length"),
        lambda norms, latent, ahead, decoder_length: (
            f"is {norms} with multi_latent_attention={latent}, mtp_num_layers={ahead}"
            if norms or latent or ahead
            else None
        ),
        why="T5 layers do not support them, and Megatron would ignore the setting",
        fix="Leave all three unset.",
        fails=(True, False, None, 128),
        passes=(False, False, None, 128),
    ),
    family_rule(
        "TF08",
        ("num_query_groups", "num_attention_heads", "decoder_seq_length"),
        lambda groups, heads, decoder_length: (
            f"is {groups} with {heads} query heads" if groups not in (None, heads) else None
        ),
        why="Megatron Core's cross-attention has as many key/value heads as query heads",
        fix="Leave num_query_groups unset.",
        fails=(2, 4, 128),
        passes=(None, 4, 128),
    ),
    family_rule(
        "TF09",
        ("max_position_embeddings", "decoder_seq_length"),
        lambda longest, decoder_length: (
            f"is {longest} with decoder_seq_length={decoder_length}"
            if longest is not None and longest < decoder_length
            else None
        ),
        why="the decoder would read positions that the embedding does not have",
        fix="Raise it to the longer of the two lengths, or leave it unset.",
        fails=(512, 600),
        passes=(600, 600),
    ),
    family_rule(
        "TF10",
        ("window_size", "attention_output_gate", "softmax_type", "decoder_seq_length"),
        lambda window, gate, softmax, decoder_length: (
            f"is {window} with attention_output_gate={gate}, softmax_type={softmax}"
            if window is not None or gate or softmax != "vanilla"
            else None
        ),
        why="neither the encoder nor cross-attention supports a window, a gate or a sink",
        fix='Leave all three unset (softmax_type="vanilla").',
        fails=((64, 0), False, "vanilla", 128),
        passes=(None, False, "vanilla", 128),
    ),
    family_rule(
        "TF11",
        ("cuda_graph_impl", "decoder_seq_length"),
        lambda implementation, decoder_length: (
            f"is {implementation}" if implementation == "transformer_engine" else None
        ),
        why="a decoder layer also takes the encoder's output, which Megatron's graphs of layers do not support",
        fix='Set it to "full_iteration" or "none".',
        fails=("transformer_engine", 128),
        passes=("full_iteration", 128),
    ),
    _same_pairs("T31", *_PAIRED),
    _same_pairs("T32", *reversed(_PAIRED)),
)
"""Rules that apply to sections with a decoder_seq_length, and to their datasets."""
