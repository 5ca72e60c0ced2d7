"""L2 norms of gradients, parameter by parameter and of the whole model. A door to torch; Megatron is not imported."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from mb_metrics.norms import NormGroups, Piece, Squares, groups_of, named_parameters

GLOBAL = "l2_norm/grad/global"
_PREFIX = "l2_norm/grad/"


def report_l2_norm_grad(model: Any, *, groups: NormGroups | None = None) -> dict[str, float]:
    """Return the norm of the gradient of each parameter of this stage, and of the whole model's under "global".

    Call it after gradients are reduced over ranks and before they are zeroed. A gradient is Megatron's
    `main_grad`, or torch's `grad`. Under tensor parallelism a norm is that of the whole parameter; with the distributed
    optimizer the parts of all ranks are put together; a name of an expert stands for that place on every
    expert-parallel rank. With several model chunks names begin with "chunk<i>.". Global counts all stages, and tied
    embeddings once.

    Collective over all `groups`; synchronises with the device.

    Args:
        model: A module or the list of this rank's model chunks, wrapped or not.
        groups: Over which the model is spread; None: those that the chunks carry (`pg_collection`), or none.
    """
    chunks = model if isinstance(model, (list, tuple)) else [model]
    shards = _shards(chunks)
    pieces = [
        _gradient_piece(name, parameter, shards)
        for name, parameter in named_parameters(chunks)
        if parameter.requires_grad
    ]
    pieces = [piece for piece in pieces if piece.value is not None or piece.sharded]
    squares = Squares(pieces, groups or groups_of(chunks))
    norms = {
        _PREFIX + piece.name: norm
        for pieces_of, numbers in (
            (squares.dense, squares.dense_squares),
            (squares.experts, squares.expert_squares),
        )
        for piece, norm in zip(pieces_of, numbers.sqrt().tolist(), strict=True)
    }
    ordered = {_PREFIX + piece.name: norms[_PREFIX + piece.name] for piece in pieces}
    return ordered | {GLOBAL: float(squares.total().sqrt())}


def _gradient_piece(name: str, parameter: Tensor, shards: dict[int, Tensor]) -> Piece:
    if id(parameter) in shards:
        return Piece(name=name, parameter=parameter, value=shards[id(parameter)], sharded=True)
    main = getattr(parameter, "main_grad", None)
    return Piece(
        name=name, parameter=parameter, value=parameter.grad if main is None else main, sharded=False
    )


def _shards(chunks: Sequence[Any]) -> dict[int, Tensor]:
    """Return by parameter what this rank has of the reduced gradients, where Megatron's DDP scattered them.

    After its reduce-scatter a rank's buffer holds sums in the rank's own part only, the n-th of each bucket.
    """
    shards: dict[int, Tensor] = {}
    for chunk in chunks:
        settings = getattr(chunk, "ddp_config", None)
        if settings is None or not settings.use_distributed_optimizer or not hasattr(chunk, "bucket_groups"):
            continue
        for bucket_group in [*chunk.bucket_groups, *chunk.expert_parallel_bucket_groups]:
            ranks = bucket_group.intra_distributed_optimizer_instance_group
            for bucket in bucket_group.buckets:
                length = bucket.grad_data.numel() // ranks.size()
                own = (ranks.rank() * length, (ranks.rank() + 1) * length)
                for parameter, (start, end) in bucket.param_to_index.items():
                    low, high = max(start, own[0]), max(start, own[0], min(end, own[1]))
                    shards[id(parameter)] = bucket.grad_data[low:high]
    return shards
