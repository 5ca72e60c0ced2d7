"""Peak activation memory of each pipeline stage."""

from __future__ import annotations

from collections.abc import Mapping

from mb_plan.memory.activations import (
    ActivationSettings,
    Microbatch,
    chunk_bytes,
    kept_bytes,
    layer_bytes,
    read_activation_settings,
)
from mb_plan.memory.model_chunks import ModelChunk
from mb_plan.memory.other_activations import cross_attention_bytes, hybrid_saved, image_bytes
from mb_plan.memory.pipeline_schedule import PipelineSchedule
from mb_plan.shape.fields import read_field
from mb_plan.shape.model_shape import ModelShape


def stage_activations(
    sections: Mapping[str, object],
    chunks: tuple[ModelChunk, ...],
    shape: ModelShape,
    *,
    number_bytes: int,
    pipeline: PipelineSchedule | None,
    length: int | None,
    stages: int,
) -> list[int | None]:
    """Return the peak activation memory of each stage, in bytes.

    Args:
        sections: "model" and "train".
        chunks: Virtual stages.
        shape: Sizes of the model.
        number_bytes: Bytes of an element of an activation.
        pipeline: Schedule; None: the microbatches are not known, nor are the activations.
        length: Tokens of a sequence, of the encoder if there is one; None: not known.
        stages: Number of stages, one more than pipeline ranks if an image encoder has ranks of its own.
    """
    model, size = sections["model"], read_field(sections.get("train"), "micro_batch_size")
    if pipeline is None or not length or not size:
        return [None] * stages
    settings = read_activation_settings(model, number_bytes=number_bytes)
    decoded = read_field(model, "decoder_seq_length") or length
    encoder = Microbatch(tokens=size * length // shape.cp, seq_length=length)
    batch = Microbatch(tokens=size * decoded // shape.cp, seq_length=decoded)
    most: list[float] = []
    for stage in range(shape.pp):
        here = [
            chunk_bytes(chunk, shape, settings, batch, **_saved(chunk, shape, settings, batch, encoder))
            for chunk in chunks
            if chunk.stage == stage
        ]
        most.append(
            pipeline.peak(stage, [left for left, _ in here], while_working=max(top for _, top in here))
        )
    images = image_bytes(shape, settings, images=size)
    if stages > shape.pp:
        most.insert(0, images)
    else:
        most[0] += images
    return [round(size) for size in most]


def _saved(
    chunk: ModelChunk,
    shape: ModelShape,
    settings: ActivationSettings,
    batch: Microbatch,
    encoder: Microbatch,
) -> dict[str, list[float]]:
    """Return what layers save, and those of a depth of multi-token prediction; empty for the layers of a GPT."""
    if shape.pattern is not None:
        letters = "".join(shape.layers[number] for number in chunk.layers)
        ahead = "".join(shape.ahead[:1])
        return {
            name: [kept_bytes(parts, settings) for parts in hybrid_saved(shape, settings, batch, of)]
            for name, of in (("saved", letters), ("ahead", ahead))
        }
    if shape.encoder_layers:
        first = kept_bytes(layer_bytes(shape, settings, encoder, experts=False), settings)
        crossed = cross_attention_bytes(shape, settings, decoder=batch, encoder=encoder)
        second = kept_bytes(layer_bytes(shape, settings, batch, experts=False), settings) + crossed
        return {"saved": [first] * shape.encoder_layers + [second] * len(chunk.layers)}
    return {}
