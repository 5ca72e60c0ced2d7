"""Comparison of the tensors that a run requests with those of a checkpoint, before anything is read."""

from collections.abc import Collection, Mapping
from pathlib import Path

from mb_checkpoint.collectives import gather_on_rank_zero, on_rank_zero
from mb_checkpoint.errors import CheckpointShapeError, first_of


def check_shapes(
    wanted: Mapping[str, tuple[int, ...]],
    stored: Mapping[str, tuple[int, ...]],
    *,
    path: Path,
    may_lack: bool = False,
    may_have_more: bool = False,
    padded: Collection[str] = (),
    padding: int = 0,
) -> list[str]:
    """Compare the tensors that all ranks request with those that a checkpoint holds.

    Args:
        wanted: Global shape of each tensor that any rank requests (`merge_over_ranks`), so that all ranks reject
            together.
        stored: Shapes in the checkpoint.
        path: Its folder, for the message.
        may_lack: The checkpoint need not hold all of them.
        may_have_more: The checkpoint may hold other tensors.
        padded: Tensors whose first dimension is the padded vocabulary, which depends on the tensor-parallel size.
        padding: The larger of the multiples to which it is padded: by fewer rows it may differ.

    Returns:
        The tensors in which it differs.

    Raises:
        CheckpointShapeError: A tensor has another shape, or is missing on one side; the message names the first ones.
    """
    lines, differing = [], []
    for key in sorted(wanted.keys() | stored.keys()):
        model_shape, stored_shape = wanted.get(key), stored.get(key)
        may_differ = (stored_shape is None and may_lack) or (model_shape is None and may_have_more)
        if (
            model_shape
            and stored_shape
            and key in padded
            and model_shape[1:] == stored_shape[1:]
            and 0 < abs(model_shape[0] - stored_shape[0]) < padding
        ):
            differing.append(key)
        elif model_shape != stored_shape and not may_differ:
            lines.append(
                f"{key}: {_shape(stored_shape)} in the checkpoint, {_shape(model_shape)} in the model"
            )
    if lines:
        raise CheckpointShapeError(
            f"{path}: made by a model of another shape: {first_of(lines)}. Set the model as in "
            "that checkpoint's run_config.yaml, or load another checkpoint."
        )
    return differing


def _shape(shape: tuple[int, ...] | None) -> str:
    return "absent" if shape is None else str(list(shape))


def padding_note(
    wanted: Mapping[str, tuple[int, ...]], stored: Mapping[str, tuple[int, ...]], differing: Collection[str]
) -> str:
    """Return a note on tensors whose vocabulary is padded to another size than in a checkpoint."""
    rows = sorted({(stored[key][0], wanted[key][0]) for key in differing})
    sizes = ", ".join(
        f"{stored_rows} rows in the checkpoint, {model_rows} in the model" for stored_rows, model_rows in rows
    )
    return (
        f"vocabulary: padded to another size ({sizes}), as the tensor-parallel size or "
        "model.make_vocab_size_divisible_by differs; common rows are loaded, further ones of the model are zero"
    )


def merge_over_ranks(local_shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Return the shapes that any rank requests. Collective; rank 0 alone receives those of all ranks."""
    by_rank = gather_on_rank_zero(local_shapes)
    return on_rank_zero(lambda: {key: shape for shapes in by_rank for key, shape in shapes.items()})
