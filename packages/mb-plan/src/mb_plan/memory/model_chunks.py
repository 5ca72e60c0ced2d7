"""Assignment of layers to pipeline stages and virtual stages, as in Megatron Core."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mb_plan.errors import PlanError
from mb_plan.shape.fields import MAX_LAYERS, as_word, read_field, reject_more_than
from mb_plan.shape.model_shape import ModelShape

_LETTERS = {"E": "embedding", "t": "decoder", "m": "mtp", "L": "loss"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChunk:
    """Contents of one virtual stage."""

    stage: int
    """Pipeline rank."""
    virtual: int
    """Index among the chunks of that rank."""
    layers: tuple[int, ...]
    """Decoder layers, counted from 0 over the complete model."""
    embedding: bool
    """The chunk has the input embedding."""
    mtp: int
    """Number of multi-token prediction layers, which require a copy of the embedding."""
    final_norm: bool
    output: bool
    """The chunk has the output layer and the loss."""


def split_into_chunks(model: object, shape: ModelShape) -> tuple[ModelChunk, ...]:
    """Split the layers of a model into chunks, sorted by stage, then by virtual stage.

    `model` is the section that `shape` was read from. The fields read are `num_layers_in_first_pipeline_stage`,
    `num_layers_in_last_pipeline_stage`, `account_for_embedding_in_pipeline_split`,
    `account_for_loss_in_pipeline_split` and `pipeline_model_parallel_layout`.

    Raises:
        PlanError: If the layers cannot be split in this way.
    """
    parts = None if shape.pattern is None else shape.pattern.stages(pp=shape.pp, vp=shape.vp)
    if parts is not None:
        return _cut_pattern(parts, shape)
    layout = read_field(model, "pipeline_model_parallel_layout")
    if layout is not None:
        rows = read_layout(layout)
        vp = _virtual(rows, shape, requested=read_field(model, "virtual_pipeline_model_parallel_size"))
        counts = {index: row.count("decoder") for index, row in _placed(rows, shape.pp)}
        mtp = {index: row.count("mtp") for index, row in _placed(rows, shape.pp)}
    else:
        vp = shape.vp
        counts = _counts(model, shape)
        mtp = {(shape.pp - 1, vp - 1): shape.mtp_layers}
    if sum(counts.values()) != shape.num_layers:
        raise PlanError(
            f"model.num_layers: is {shape.num_layers}, but the stages have {sum(counts.values())} layers in total. "
            "Change the layers of the stages."
        )
    chunks = []
    start = 0
    for virtual in range(vp):
        for stage in range(shape.pp):
            layers = tuple(range(start, start + counts[stage, virtual]))
            start += len(layers)
            output = (stage, virtual) == (shape.pp - 1, vp - 1)
            chunks.append(
                ModelChunk(
                    stage=stage,
                    virtual=virtual,
                    layers=layers,
                    embedding=(stage, virtual) == (0, 0),
                    mtp=mtp.get((stage, virtual), 0),
                    final_norm=shape.num_layers - 1 in layers if shape.mtp_layers else output,
                    output=output,
                )
            )
    return tuple(sorted(chunks, key=lambda chunk: (chunk.stage, chunk.virtual)))


def _cut_pattern(parts: Sequence[str], shape: ModelShape) -> tuple[ModelChunk, ...]:
    """Split the layers of a hybrid model at the bars of its pattern."""
    chunks, start = [], 0
    for index, letters in enumerate(parts):
        last = index == shape.pp * shape.vp - 1
        chunks.append(
            ModelChunk(
                stage=index % shape.pp,
                virtual=index // shape.pp,
                layers=tuple(range(start, start + len(letters))),
                embedding=index == 0,
                mtp=shape.mtp_layers if last else 0,
                final_norm=last,
                output=last,
            )
        )
        start += len(letters)
    return tuple(sorted(chunks, key=lambda chunk: (chunk.stage, chunk.virtual)))


def read_layout(layout: object) -> list[list[str]]:
    """Return a pipeline layout as rows of "embedding", "decoder", "mtp" and "loss", one row per virtual stage.

    Accepts Megatron's text format ("Et*3|(tt|)*2m|L": a bar ends a stage, `x*n` and `(...)*n` repeat), or rows of names
    or of enum members with these names.

    Raises:
        PlanError: If the layout has none of these forms.
    """
    if isinstance(layout, str):
        text = layout.replace(",", "").replace(" ", "")
        text = _repeated(_repeated(text, r"\(([^)]+)\)\*(\d+)"), r"(.)\*(\d+)")
        unknown = set(text) - {*_LETTERS, "|"}
        if not unknown:
            return [[_LETTERS[letter] for letter in row] for row in text.split("|")]
    elif isinstance(layout, Sequence) and all(isinstance(row, list | tuple) for row in layout):
        rows = [[str(as_word(item)).strip().lower() for item in row] for row in layout]
        if {item for row in rows for item in row} <= set(_LETTERS.values()):
            return rows
    raise PlanError(
        f"model.pipeline_model_parallel_layout: {layout!r} is not a layout. Its letters are E (embedding), t "
        "(layer), m (multi-token prediction) and L (loss), with | between stages. Correct it."
    )


def _repeated(text: str, pattern: str) -> str:
    """Expand the repetitions of a pattern, whose first group is the text and whose second group is the count."""
    found = re.findall(pattern, text)
    times = [int(number) if len(number) < 10 else 10**9 for _, number in found]
    parts = sum(len(part) * number for (part, _), number in zip(found, times, strict=True))
    reject_more_than("pipeline_model_parallel_layout", parts, "parts", most=MAX_LAYERS)
    return re.sub(pattern, lambda match: match[1] * int(match[2]), text)


def _placed(rows: list[list[str]], pp: int) -> list[tuple[tuple[int, int], list[str]]]:
    return [((index % pp, index // pp), row) for index, row in enumerate(rows)]


def _virtual(rows: list[list[str]], shape: ModelShape, *, requested: int | None) -> int:
    """Return the number of virtual stages per rank of a layout.

    Raises:
        PlanError: The rows of the layout do not match the stages, or its multi-token prediction that of the model.
    """
    vp, rest = divmod(len(rows), shape.pp)
    if rest or (requested is not None and requested != vp):
        raise PlanError(
            f"model.pipeline_model_parallel_layout: {len(rows)} parts do not match pp={shape.pp} and vp={requested}. "
            "There must be one part for each virtual stage. Change the layout or the sizes."
        )
    mtp = sum(row.count("mtp") for row in rows)
    if mtp != shape.mtp_layers:
        raise PlanError(
            f"model.pipeline_model_parallel_layout: has {mtp} layers of multi-token prediction, but "
            f"mtp_num_layers={shape.mtp_layers}. Correct it or model.mtp_num_layers."
        )
    return vp


def _counts(model: object, shape: ModelShape) -> dict[tuple[int, int], int]:
    """Return the number of layers of each (stage, virtual stage)."""
    first = read_field(model, "num_layers_in_first_pipeline_stage")
    last = read_field(model, "num_layers_in_last_pipeline_stage")
    embedding = bool(read_field(model, "account_for_embedding_in_pipeline_split", False))
    loss = bool(read_field(model, "account_for_loss_in_pipeline_split", False))
    stages = shape.pp
    if first is None and last is None:
        ranks = [_share(shape.num_layers + embedding + loss, stages, "stages")] * stages
    else:
        if embedding or loss:
            raise PlanError(
                "model.num_layers_in_first_pipeline_stage: excludes account_for_embedding_in_pipeline_split and "
                f"account_for_loss_in_pipeline_split (first={first}, last={last}), because both set the number of "
                "layers of a stage. Use one of the two."
            )
        between = stages - (first is not None) - (last is not None)
        rest = shape.num_layers - (first or 0) - (last or 0)
        middle = _share(rest, between, "stages between") if between > 0 else 0
        ranks = [middle] * stages
        if first is not None:
            ranks[0] = first
        if last is not None:
            ranks[-1] = last
    counts: dict[tuple[int, int], int] = {}
    for stage, layers in enumerate(ranks):
        share = _share(layers, shape.vp, f"virtual stages of stage {stage}")
        counts |= {(stage, virtual): share for virtual in range(shape.vp)}
    counts[0, 0] -= embedding
    counts[stages - 1, shape.vp - 1] -= loss
    return counts


def _share(layers: int, parts: int, what: str) -> int:
    if layers < 0 or layers % parts:
        raise PlanError(
            f"model.num_layers: {layers} layers cannot be divided equally over {parts} {what}. "
            "Change the layers, pp, vp, or the layout."
        )
    return layers // parts
