"""Rules on the section of a T5, in addition to those for every family."""

from functools import partial
from typing import Any

from mb_models.family_rules import family_rule
from mb_schema.rule_kinds import dataset_rule, model_rule
from mb_schema.rules import Rule, rules_in

t5_rule = partial(family_rule, "decoder_seq_length")


@t5_rule(
    "TF01",
    why="an encoder without layers or a sequence without tokens cannot be built",
    fix="Set positive numbers.",
    fails={"encoder_num_layers": 0, "seq_length": 512},
    passes={"encoder_num_layers": None},
)
def _some_layers(encoder_num_layers, seq_length, decoder_seq_length):
    if (encoder_num_layers is None or encoder_num_layers >= 1) and min(seq_length, decoder_seq_length) >= 1:
        return None
    return f"is {encoder_num_layers} with seq_length={seq_length}, decoder_seq_length={decoder_seq_length}"


@t5_rule(
    "TF02",
    why="Megatron Core's schedules pass one tensor from stage to stage, while every stage of a decoder needs the "
    "encoder's output too, and the run would hang",
    fix="Set pipeline_model_parallel_size=1; use tensor parallelism.",
    fails={"pp": 2},
    passes={"pp": 1},
)
def _one_stage(pp, vp):
    return f"is {pp} (virtual stages: {vp})" if pp > 1 or (vp or 1) > 1 else None


@t5_rule(
    "TF03",
    why="masks of encoder and cross-attention are not split over context-parallel ranks",
    fix="Set context_parallel_size=1.",
    fails={"cp": 2},
    passes={"cp": 1},
)
def _whole_sequences(cp):
    return f"is {cp}" if cp > 1 else None


@t5_rule(
    "TF04",
    why="sequence parallelism gives each rank the same number of tokens of both sequences",
    fix="Change the lengths, or set sequence_parallel=false.",
    fails={"sequence_parallel": True, "tp": 2, "seq_length": 512, "decoder_seq_length": 101},
    passes={"decoder_seq_length": 128},
)
def _split_evenly(sequence_parallel, tp, seq_length, decoder_seq_length):
    if not sequence_parallel or (seq_length % tp == 0 and decoder_seq_length % tp == 0):
        return None
    return (
        f"{seq_length} and {decoder_seq_length} tokens are not divisible by tensor_model_parallel_size={tp}"
    )


_PAIRS: dict[str, Any] = {
    "why": "only a T5 reads pairs of sequences, and its decoder writes the complete second one",
    "fix": "Give model and dataset the same decoder_seq_length: a T5ModelConfig with a T5DatasetConfig, a "
    "T5TextCorpusConfig or a custom section, and other models with other data.",
    "fails": {"decoder_seq_length": 128},
}


@model_rule("T31", passes={"dataset__decoder_seq_length": 128}, **_PAIRS)
def _model_for_pairs_only(decoder_seq_length, dataset__decoder_seq_length):
    return _differs(decoder_seq_length, "dataset.decoder_seq_length", dataset__decoder_seq_length)


@dataset_rule("T32", passes={"model__decoder_seq_length": 128}, **_PAIRS)
def _dataset_of_pairs_only(decoder_seq_length, model__decoder_seq_length):
    return _differs(decoder_seq_length, "model.decoder_seq_length", model__decoder_seq_length)


def _differs(length: int | None, path: str, other: int | None) -> str | None:
    differs = length not in (None, other)
    return f"is {length}, but {path}={'null' if other is None else other}" if differs else None


@t5_rule(
    "TF05",
    why="attention without Transformer Engine has no bias of relative positions, and would fail or ignore it",
    fix='Use "learned_absolute" or "rope".',
    fails={"position_embedding_type": "relative"},
    passes={"position_embedding_type": "rope"},
)
def _positions_without_bias(position_embedding_type):
    return (
        None
        if position_embedding_type in ("learned_absolute", "rope")
        else f"{position_embedding_type!r} is not supported"
    )


@t5_rule(
    "TF06",
    why="T5 layers are dense",
    fix="Unset it.",
    fails={"num_moe_experts": 4},
    passes={"num_moe_experts": None},
)
def _experts(num_moe_experts):
    return f"is {num_moe_experts}" if num_moe_experts is not None else None


@t5_rule(
    "TF07",
    why="T5 layers do not support them, and Megatron would ignore the setting",
    fix="Leave all three unset.",
    fails={"qk_layernorm": True, "multi_latent_attention": False},
    passes={"qk_layernorm": False},
)
def _settings_of_gpt_layers(qk_layernorm, multi_latent_attention, mtp_num_layers):
    return (
        f"is {qk_layernorm} with multi_latent_attention={multi_latent_attention}, mtp_num_layers={mtp_num_layers}"
        if qk_layernorm or multi_latent_attention or mtp_num_layers
        else None
    )


@t5_rule(
    "TF08",
    why="Megatron Core's cross-attention has as many key/value heads as query heads",
    fix="Leave num_query_groups unset.",
    fails={"num_query_groups": 2, "num_attention_heads": 4},
    passes={"num_query_groups": None},
)
def _query_groups(num_query_groups, num_attention_heads):
    return (
        f"is {num_query_groups} with {num_attention_heads} query heads"
        if num_query_groups not in (None, num_attention_heads)
        else None
    )


@t5_rule(
    "TF09",
    why="the decoder would read positions that the embedding does not have",
    fix="Raise it to the longer of the two lengths, or leave it unset.",
    fails={"max_position_embeddings": 512, "decoder_seq_length": 600},
    passes={"max_position_embeddings": 600},
)
def _fewer_positions_than_tokens(max_position_embeddings, decoder_seq_length):
    return (
        f"is {max_position_embeddings} with decoder_seq_length={decoder_seq_length}"
        if max_position_embeddings is not None and max_position_embeddings < decoder_seq_length
        else None
    )


@t5_rule(
    "TF10",
    why="neither the encoder nor cross-attention supports a window, a gate or a sink",
    fix='Leave all three unset (softmax_type="vanilla").',
    fails={
        "window_size": (64, 0),
        "attention_output_gate": False,
        "softmax_type": "vanilla",
    },
    passes={"window_size": None},
)
def _window_gate_or_sink(window_size, attention_output_gate, softmax_type):
    return (
        f"is {window_size} with attention_output_gate={attention_output_gate}, softmax_type={softmax_type}"
        if window_size is not None or attention_output_gate or softmax_type != "vanilla"
        else None
    )


@t5_rule(
    "TF11",
    why="a decoder layer also takes the encoder's output, which Megatron's graphs of layers do not support",
    fix='Set it to "full_iteration" or "none".',
    fails={"cuda_graph_impl": "transformer_engine"},
    passes={"cuda_graph_impl": "full_iteration"},
)
def _graphs_of_layers(cuda_graph_impl):
    return f"is {cuda_graph_impl}" if cuda_graph_impl == "transformer_engine" else None


RULES: tuple[Rule, ...] = rules_in(globals())
"""Rules that apply to sections with a decoder_seq_length, and to their datasets."""
