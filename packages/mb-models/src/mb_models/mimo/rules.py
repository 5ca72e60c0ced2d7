"""Rules on the section of a vision-language model, in addition to those for every GPT."""

from collections.abc import Callable

from mb_models.hybrid.rules import family_rule
from mb_models.mimo import layout_rules as mimo_layout_rules
from mb_schema.rule_kinds import rule
from mb_schema.rules import Rule

FAMILY_FIELD = "vision_num_layers"
"""Field that only vision-language models have."""


def _encoder_sizes(
    layers: int, hidden: int, heads: int, ffn: int | None, projection: int | None
) -> str | None:
    sizes = {
        "vision_num_layers": layers,
        "vision_hidden_size": hidden,
        "vision_num_attention_heads": heads,
        "vision_ffn_hidden_size": ffn,
        "projector_hidden_size": projection,
    }
    wrong = [f"{name}={size}" for name, size in sizes.items() if size is not None and size < 1]
    if wrong:
        return f"sizes must be 1 or more ({', '.join(wrong)})"
    return None if hidden % heads == 0 else f"{heads} heads do not divide vision_hidden_size={hidden}"


def _patches(patch: int, size: int, layers: int) -> str | None:
    if patch >= 1 and size >= patch and size % patch == 0:
        return None
    return f"patches of {patch} pixels do not fill an image of {size}"


def _sequence_longer_than_image(length: int, size: int, patch: int, layers: int) -> str | None:
    tokens = (size // patch) ** 2 if patch >= 1 else 0
    return None if length > tokens else f"{length} tokens leave no room after the {tokens} of an image"


def _encoder_splits(
    language_tp: int,
    own_tp: int | None,
    heads: int,
    hidden: int,
    ffn: int | None,
    projection: int | None,
    language: int,
) -> str | None:
    tp = own_tp or language_tp
    widths = {
        "vision_num_attention_heads": heads,
        "vision_ffn_hidden_size": ffn or 4 * hidden,
        "projector_hidden_size": projection or language,
    }
    uneven = [f"{name}={width}" for name, width in widths.items() if tp >= 1 and width % tp]
    return f"{tp} ranks cannot share {', '.join(uneven)} evenly" if uneven else None


def _one_stage(pp: int, vpp: int | None, layers: int) -> str | None:
    return f"is {pp} (virtual stages: {vpp})" if pp > 1 or (vpp or 1) > 1 else None


def _dropout_under_sequence_parallel(together: bool, dropout: float, layers: int) -> str | None:
    return f"is on with hidden_dropout={dropout}" if together and dropout > 0 else None


def _embedding_inputs(ahead: int | None, overlap: bool, layers: int) -> str | None:
    if overlap:
        return f"is {ahead} with overlap_moe_expert_parallel_comm=true"
    return f"is {ahead}" if ahead else None


def _no_cuda_graph(graphs: str, layers: int) -> str | None:
    return f"is {graphs}" if graphs != "none" else None


def _per_token_loss_under_cp(per_token: bool, cp: int, layers: int) -> str | None:
    return f"is off with context_parallel_size={cp}" if cp > 1 and not per_token else None


def _negative(number: int | None) -> str | None:
    return f"is {number}" if number is not None and number >= 0 else None


def _matches_dataset(name: str) -> Callable[[object, object], str | None]:
    """Return a test that a field of the model (first) has the dataset's value of that name, if it is set."""

    def test(value: object, expected: object) -> str | None:
        return (
            None
            if None in (value, expected) or value == expected
            else f"is {value}, but dataset.{name} is {expected}"
        )

    return test


def _image_tokens_match(patch: int | None, size: int | None, tokens: int | None) -> str | None:
    if not patch or patch < 1 or size is None or tokens is None or (size // patch) ** 2 == tokens:
        return None
    return f"makes {(size // patch) ** 2} patches of an image, but dataset.image_tokens is {tokens}"


def _images_without_encoder(number: int | None, layers: int | None) -> str | None:
    return f"is {number}, but the model has no encoder" if number is not None and layers is None else None


def _encoder_without_images(blend: object, layers: int | None) -> str | None:
    return f"is for text, but the encoder has {layers} layers" if layers is not None else None


RULES: tuple[Rule, ...] = (
    family_rule(
        "M01",
        (
            "vision_num_layers",
            "vision_hidden_size",
            "vision_num_attention_heads",
            "vision_ffn_hidden_size",
            "projector_hidden_size",
        ),
        _encoder_sizes,
        why="the encoder needs layers, and its heads share its width",
        fix="Set positive sizes, and a vision_hidden_size that its heads divide.",
        fails=(2, 64, 3, None, None),
        passes=(2, 64, 4, None, None),
    ),
    family_rule(
        "M02",
        ("patch_size", "image_size", FAMILY_FIELD),
        _patches,
        why="an image is divided into complete patches",
        fix="Set image_size to a multiple of patch_size.",
        fails=(14, 32, 2),
        passes=(8, 32, 2),
    ),
    family_rule(
        "M03",
        ("seq_length", "image_size", "patch_size", FAMILY_FIELD),
        _sequence_longer_than_image,
        why="a sequence holds an image and the text about it",
        fix="Raise seq_length, or choose larger patches.",
        fails=(16, 32, 8, 2),
        passes=(80, 32, 8, 2),
    ),
    family_rule(
        "M04",
        (
            "tensor_model_parallel_size",
            "vision_tensor_model_parallel_size",
            "vision_num_attention_heads",
            "vision_hidden_size",
            "vision_ffn_hidden_size",
            "projector_hidden_size",
            "hidden_size",
            FAMILY_FIELD,
        ),
        lambda *values: _encoder_splits(*values[:-1]),
        why="encoder and projection are split over the ranks of the language model, or over "
        "vision_tensor_model_parallel_size",
        fix="Change the sizes, or use fewer tensor-parallel ranks.",
        fails=(2, None, 3, 96, None, None, 64, 2),
        passes=(2, 1, 3, 96, None, None, 64, 2),
    ),
    family_rule(
        "M05",
        ("pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size", FAMILY_FIELD),
        _one_stage,
        why="the pipeline stages of Megatron Core's MIMO model are its modules, each of them complete",
        fix="Set pipeline_model_parallel_size=1; language_rank_offset puts the modules on separate ranks.",
        fails=(2, None, 2),
        passes=(1, None, 2),
    ),
    family_rule(
        "M06",
        ("sequence_parallel", "hidden_dropout", FAMILY_FIELD),
        _dropout_under_sequence_parallel,
        why="each rank would apply a different dropout to the full embedding and take its part of it, so that the "
        "gradients of the other parts would be wrong",
        fix="Set hidden_dropout=0, or sequence_parallel=false.",
        fails=(True, 0.1, 2),
        passes=(True, 0.0, 2),
    ),
    family_rule(
        "M07",
        ("mtp_num_layers", "overlap_moe_expert_parallel_comm", FAMILY_FIELD),
        _embedding_inputs,
        why="Megatron Core's MIMO model passes its language model the embedding of images and text, from which "
        "neither multi-token prediction nor a schedule plan can be built",
        fix="Unset mtp_num_layers, and set overlap_moe_expert_parallel_comm=false.",
        fails=(1, False, 2),
        passes=(None, False, 2),
    ),
    family_rule(
        "M08",
        ("cuda_graph_impl", FAMILY_FIELD),
        _no_cuda_graph,
        why="inserting patches into the text synchronises with the device in every step, which a graph does not "
        "support",
        fix='Set cuda_graph_impl="none".',
        fails=("local", 2),
        passes=("none", 2),
    ),
    family_rule(
        "M09",
        ("calculate_per_token_loss", "context_parallel_size", FAMILY_FIELD),
        _per_token_loss_under_cp,
        why="only captions are trained, and each context-parallel rank has a different number of their tokens, so "
        "that the mean of the ranks' means is not the loss of the sequence",
        fix="Set calculate_per_token_loss=true.",
        fails=(False, 2, 2),
        passes=(True, 2, 2),
    ),
    rule(
        "M10",
        "model.image_token_id",
        _negative,
        why="numbers from 0 are rows of the embedding, which the text would lose",
        fix="Set a negative number.",
        fails=(7,),
        passes=(-200,),
    ),
    rule(
        "M11",
        ("model.image_size", "dataset.image_size"),
        _matches_dataset("image_size"),
        why="the encoder has one position embedding per patch, for images of one size",
        fix="Set both to the same value.",
        fails=(224, 32),
        passes=(32, 32),
    ),
    rule(
        "M12",
        ("model.patch_size", "model.image_size", "dataset.image_tokens"),
        _image_tokens_match,
        why="each patch needs one token in the text",
        fix="Set dataset.image_tokens to the square of image_size / patch_size.",
        fails=(4, 32, 16),
        passes=(8, 32, 16),
    ),
    rule(
        "M13",
        ("model.image_token_id", "dataset.image_token_id"),
        _matches_dataset("image_token_id"),
        why="the model finds the tokens of an image by it",
        fix="Set both to the same value.",
        fails=(-200, -1),
        passes=(-200, -200),
    ),
    rule(
        "M14",
        ("dataset.image_token_id", f"model.{FAMILY_FIELD}"),
        _images_without_encoder,
        why="a text model has no image tokens",
        fix="Use a MimoModelConfig, or a dataset of text.",
        fails=(-200, None),
        passes=(-200, 2),
    ),
    rule(
        "M15",
        ("dataset.blend", f"model.{FAMILY_FIELD}"),
        _encoder_without_images,
        why="each sequence of a vision-language model needs an image",
        fix="Use a dataset of images with captions, such as DrawnShapesConfig.",
        fails=(None, 2),
        passes=(None, None),
    ),
    *mimo_layout_rules.RULES,
)
"""Rules on the model alone apply to sections with an image encoder, the others to model and dataset together."""
