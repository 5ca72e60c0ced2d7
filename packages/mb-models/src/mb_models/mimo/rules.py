"""Rules on the section of a vision-language model, in addition to those for every GPT."""

from functools import partial

from mb_models.family_rules import family_rule
from mb_models.mimo import layout_rules as mimo_layout_rules
from mb_schema.rule_kinds import dataset_rule, model_rule
from mb_schema.rules import Rule, rules_in

vision_rule = partial(family_rule, "vision_num_layers")


@vision_rule(
    "M01",
    why="the encoder needs layers, and its heads share its width",
    fix="Set positive sizes, and a vision_hidden_size that its heads divide.",
    fails={"vision_num_layers": 2, "vision_hidden_size": 64, "vision_num_attention_heads": 3},
    passes={"vision_num_attention_heads": 4},
)
def _encoder_sizes(
    vision_num_layers,
    vision_hidden_size,
    vision_num_attention_heads,
    vision_ffn_hidden_size,
    projector_hidden_size,
):
    sizes = {
        "vision_num_layers": vision_num_layers,
        "vision_hidden_size": vision_hidden_size,
        "vision_num_attention_heads": vision_num_attention_heads,
        "vision_ffn_hidden_size": vision_ffn_hidden_size,
        "projector_hidden_size": projector_hidden_size,
    }
    wrong = [f"{name}={size}" for name, size in sizes.items() if size is not None and size < 1]
    if wrong:
        return f"sizes must be 1 or more ({', '.join(wrong)})"
    return (
        None
        if vision_hidden_size % vision_num_attention_heads == 0
        else f"{vision_num_attention_heads} heads do not divide vision_hidden_size={vision_hidden_size}"
    )


@vision_rule(
    "M02",
    why="an image is divided into complete patches",
    fix="Set image_size to a multiple of patch_size.",
    fails={"patch_size": 14, "image_size": 32},
    passes={"patch_size": 8},
)
def _patches(patch_size, image_size):
    if patch_size >= 1 and image_size >= patch_size and image_size % patch_size == 0:
        return None
    return f"patches of {patch_size} pixels do not fill an image of {image_size}"


@vision_rule(
    "M03",
    why="a sequence holds an image and the text about it",
    fix="Raise seq_length, or choose larger patches.",
    fails={"seq_length": 16, "image_size": 32, "patch_size": 8},
    passes={"seq_length": 80},
)
def _sequence_longer_than_image(seq_length, image_size, patch_size):
    tokens = (image_size // patch_size) ** 2 if patch_size >= 1 else 0
    return (
        None if seq_length > tokens else f"{seq_length} tokens leave no room after the {tokens} of an image"
    )


@vision_rule(
    "M04",
    why="encoder and projection are split over the ranks of the language model, or over "
    "vision_tensor_model_parallel_size",
    fix="Change the sizes, or use fewer tensor-parallel ranks.",
    fails={
        "tp": 2,
        "vision_num_attention_heads": 3,
        "vision_hidden_size": 96,
        "hidden_size": 64,
    },
    passes={"vision_tensor_model_parallel_size": 1},
)
def _encoder_not_split_evenly(
    tp,
    vision_tensor_model_parallel_size,
    vision_num_attention_heads,
    vision_hidden_size,
    vision_ffn_hidden_size,
    projector_hidden_size,
    hidden_size,
):
    ranks = vision_tensor_model_parallel_size or tp
    widths = {
        "vision_num_attention_heads": vision_num_attention_heads,
        "vision_ffn_hidden_size": vision_ffn_hidden_size or 4 * vision_hidden_size,
        "projector_hidden_size": projector_hidden_size or hidden_size,
    }
    uneven = [f"{name}={width}" for name, width in widths.items() if ranks >= 1 and width % ranks]
    return f"{ranks} ranks cannot share {', '.join(uneven)} evenly" if uneven else None


@vision_rule(
    "M05",
    why="the pipeline stages of Megatron Core's MIMO model are its modules, each of them complete",
    fix="Set pipeline_model_parallel_size=1; language_rank_offset puts the modules on separate ranks.",
    fails={"pp": 2},
    passes={"pp": 1},
)
def _one_stage(pp, vp):
    return f"is {pp} (virtual stages: {vp})" if pp > 1 or (vp or 1) > 1 else None


@vision_rule(
    "M06",
    why="each rank would apply a different dropout to the full embedding and take its part of it, so that the "
    "gradients of the other parts would be wrong",
    fix="Set hidden_dropout=0, or sequence_parallel=false.",
    fails={"sequence_parallel": True, "hidden_dropout": 0.1},
    passes={"hidden_dropout": 0.0},
)
def _dropout_under_sequence_parallel(sequence_parallel, hidden_dropout):
    return f"is on with hidden_dropout={hidden_dropout}" if sequence_parallel and hidden_dropout > 0 else None


@vision_rule(
    "M07",
    why="Megatron Core's MIMO model passes its language model the embedding of images and text, from which "
    "neither multi-token prediction nor a schedule plan can be built",
    fix="Unset mtp_num_layers, and set overlap_moe_expert_parallel_comm=false.",
    fails={"mtp_num_layers": 1},
    passes={"mtp_num_layers": None},
)
def _embedding_inputs(mtp_num_layers, overlap_moe_expert_parallel_comm):
    if overlap_moe_expert_parallel_comm:
        return f"is {mtp_num_layers} with overlap_moe_expert_parallel_comm=true"
    return f"is {mtp_num_layers}" if mtp_num_layers else None


@vision_rule(
    "M08",
    why="inserting patches into the text synchronises with the device in every step, which a graph does not "
    "support",
    fix='Set cuda_graph_impl="none".',
    fails={"cuda_graph_impl": "local"},
    passes={"cuda_graph_impl": "none"},
)
def _no_cuda_graph(cuda_graph_impl):
    return f"is {cuda_graph_impl}" if cuda_graph_impl != "none" else None


@vision_rule(
    "M09",
    why="only captions are trained, and each context-parallel rank has a different number of their tokens, so "
    "that the mean of the ranks' means is not the loss of the sequence",
    fix="Set calculate_per_token_loss=true.",
    fails={"calculate_per_token_loss": False, "cp": 2},
    passes={"calculate_per_token_loss": True},
)
def _per_token_loss_under_cp(calculate_per_token_loss, cp):
    return f"is off with context_parallel_size={cp}" if cp > 1 and not calculate_per_token_loss else None


@model_rule(
    "M10",
    why="numbers from 0 are rows of the embedding, which the text would lose",
    fix="Set a negative number.",
    fails={"image_token_id": 7},
    passes={"image_token_id": -200},
)
def _negative(image_token_id):
    return f"is {image_token_id}" if image_token_id is not None and image_token_id >= 0 else None


@model_rule(
    "M11",
    why="the encoder has one position embedding per patch, for images of one size",
    fix="Set both to the same value.",
    fails={"image_size": 224, "dataset__image_size": 32},
    passes={"image_size": 32},
)
def _image_sizes_differ(image_size, dataset__image_size):
    return _differs(image_size, "dataset.image_size", dataset__image_size)


@model_rule(
    "M13",
    why="the model finds the tokens of an image by it",
    fix="Set both to the same value.",
    fails={"image_token_id": -200, "dataset__image_token_id": -1},
    passes={"dataset__image_token_id": -200},
)
def _image_tokens_differ(image_token_id, dataset__image_token_id):
    return _differs(image_token_id, "dataset.image_token_id", dataset__image_token_id)


def _differs(value: object, path: str, expected: object) -> str | None:
    differ = None not in (value, expected) and value != expected
    return f"is {value}, but {path} is {expected}" if differ else None


@model_rule(
    "M12",
    why="each patch needs one token in the text",
    fix="Set dataset.image_tokens to the square of image_size / patch_size.",
    fails={"patch_size": 4, "image_size": 32, "dataset__image_tokens": 16},
    passes={"patch_size": 8},
)
def _image_tokens_match(patch_size, image_size, dataset__image_tokens):
    if (
        not patch_size
        or patch_size < 1
        or image_size is None
        or dataset__image_tokens is None
        or (image_size // patch_size) ** 2 == dataset__image_tokens
    ):
        return None
    return (
        f"makes {(image_size // patch_size) ** 2} patches of an image, but dataset.image_tokens is "
        f"{dataset__image_tokens}"
    )


@dataset_rule(
    "M14",
    why="a text model has no image tokens",
    fix="Use a MimoModelConfig, or a dataset of text.",
    fails={"image_token_id": -200},
    passes={"model__vision_num_layers": 2},
)
def _images_without_encoder(image_token_id, model__vision_num_layers):
    if image_token_id is not None and model__vision_num_layers is None:
        return f"is {image_token_id}, but the model has no encoder"
    return None


@dataset_rule(
    "M15",
    why="each sequence of a vision-language model needs an image",
    fix="Use a dataset of images with captions, such as DrawnShapesConfig.",
    fails={"blend": None, "model__vision_num_layers": 2},
    passes={"model__vision_num_layers": None},
)
def _encoder_without_images(blend, model__vision_num_layers):
    if model__vision_num_layers is not None:
        return f"is for text, but the encoder has {model__vision_num_layers} layers"
    return None


RULES: tuple[Rule, ...] = (
    *rules_in(globals()),
    *mimo_layout_rules.RULES,
)
"""Rules on the model alone apply to sections with an image encoder, the others to model and dataset together."""
