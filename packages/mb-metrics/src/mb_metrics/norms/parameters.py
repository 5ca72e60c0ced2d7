"""L2 norms of all parameters of a distributed model. Adapter for torch; does not import Megatron."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor

from mb_metrics.recorder.reductions import device_of, is_alone
from mb_metrics.recorder.tensors import to_device


def attribute(item: object, name: str) -> Any:
    """Return an attribute that Megatron sets where it applies; None if it is not set."""
    return getattr(item, name, None)


def first_group(groups: object | None, *names: str) -> Any:
    """Return the first of these process groups that exists in a collection; None if there is none."""
    return next((group for name in names if (group := attribute(groups, name)) is not None), None)


def has_distributed_optimizer(chunk: object) -> bool:
    """Return True if the optimizer state of a model chunk, wrapped in Megatron's DDP, is sharded."""
    settings = attribute(chunk, "ddp_config")
    return settings is not None and bool(settings.use_distributed_optimizer)


@dataclass(frozen=True, slots=True, kw_only=True)
class NormGroups:
    """Process groups of a distributed model; None: no parallelism of that kind."""

    tp: ProcessGroup | None = None
    """Tensor parallelism: each rank has a shard of a split parameter, or a copy of a replicated one."""
    pp: ProcessGroup | None = None
    """Pipeline stages."""
    dp: ProcessGroup | None = None
    """Ranks over which the distributed optimizer shards its state: data and context parallelism."""
    ep: ProcessGroup | None = None
    """Expert parallelism: each rank has different experts."""
    expert_tp: ProcessGroup | None = None
    """Tensor parallelism of the experts."""
    expert_dp: ProcessGroup | None = None
    """Ranks over which the optimizer state of the experts is sharded."""

    @classmethod
    def of(cls, groups: object) -> "NormGroups":
        """Create from Megatron's ProcessGroupCollection, or from any object with its field names."""
        return cls(
            tp=first_group(groups, "tp"),
            pp=first_group(groups, "pp"),
            dp=first_group(groups, "intra_dp_cp", "dp_cp", "dp"),
            ep=first_group(groups, "ep"),
            expert_tp=first_group(groups, "expt_tp"),
            expert_dp=first_group(groups, "intra_expt_dp", "expt_dp"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterShard:
    """Part of one parameter, or of its gradient, on this rank."""

    name: str
    parameter: Tensor
    """The parameter; its attributes describe its distribution."""
    value: Tensor | None
    """Tensor whose norm is computed; None: this rank has no part of it."""
    sharded: bool
    """True if the value is sharded over the ranks of the optimizer's group."""

    @property
    def is_expert(self) -> bool:
        """True for a parameter of an expert, which Megatron marks with `allreduce=False`."""
        return attribute(self.parameter, "allreduce") is False

    def counts(self, group: ProcessGroup | None) -> bool:
        """Return False for a replica that another rank of the tensor-parallel group counts."""
        split = bool(attribute(self.parameter, "tensor_model_parallel"))
        return split or is_alone(group) or (group is not None and group.rank() == 0)


def param_is_not_shared(param: Tensor) -> bool:
    """Return False for a copy of a parameter of another pipeline stage (tied embeddings) or expert-parallel rank."""
    return not attribute(param, "shared")


def calc_params_l2_norm(
    model: Any,
    model_config: object = None,
    use_megatron_fsdp: bool = False,
    force_create_fp32_copy: bool = False,
    *,
    groups: NormGroups | None = None,
) -> float:
    """Return the L2 norm of all parameters of the complete model, each counted once.

    For half-precision weights, the optimizer's float32 main parameters are used if they exist. The norms are float32,
    the sums of their squares float64. Collective over all `groups`; synchronizes with the device.

    Args:
        model: A module or the list of this rank's model chunks, wrapped or not.
        model_config: Not read; part of Megatron's signature.
        use_megatron_fsdp: If True, the parameters are DTensors; gathers in flight of Megatron's FSDP are stopped first.
        force_create_fp32_copy: If True, use the weights even if the optimizer has main parameters.
        groups: Process groups of the model; None: the `pg_collection` of the chunks, if they have one.

    Raises:
        RuntimeError: with `use_megatron_fsdp`, a parameter is not a DTensor; or a DTensor holds partial sums.
    """
    chunks = model if isinstance(model, (list, tuple)) else [model]
    if use_megatron_fsdp:
        return calc_dtensor_params_l2_norm(_fsdp_parameters(chunks))
    groups = groups or groups_of(chunks)
    pieces = parameter_shards(chunks, named_parameters(chunks), groups, weights=force_create_fp32_copy)
    squares = SquaredNorms(pieces, groups)
    return float(squares.total().sqrt())


def calc_dtensor_params_l2_norm(params: Iterable[Tensor]) -> float:
    """Return the L2 norm of DTensors, each counted once regardless of its placement on the mesh.

    Collective over the meshes: every rank must pass the same parameters in the same order. Synchronizes with
    the device.

    Raises:
        RuntimeError: a parameter is not a DTensor, or holds partial sums.
    """
    listed = list(params)
    for parameter in listed:
        if not isinstance(parameter, DTensor):
            raise RuntimeError(  # noqa: TRY004 - the exception type of Megatron's function of this name
                f"calc_dtensor_params_l2_norm: a {type(parameter).__name__} of shape {tuple(parameter.shape)} is not a "
                "DTensor. Its process groups are not known. Use calc_params_l2_norm."
            )
    return float(dtensor_squares(listed).sum().sqrt()) if listed else 0.0


def named_parameters(chunks: Sequence[Any]) -> list[tuple[str, Tensor]]:
    """Return the parameters of all chunks, each once; with several chunks, names begin with "chunk<i>."."""
    named, seen = [], set()
    for prefix, chunk in prefixed(chunks):
        for name, parameter in chunk.named_parameters():
            if id(parameter) not in seen:
                seen.add(id(parameter))
                named.append((prefix + name, parameter))
    return named


def prefixed(chunks: Sequence[Any]) -> list[tuple[str, Any]]:
    """Return each chunk with the prefix of its names: "chunk<i>." if there are several."""
    return [(f"chunk{index}." if len(chunks) > 1 else "", chunk) for index, chunk in enumerate(chunks)]


def groups_of(chunks: Sequence[Any]) -> NormGroups:
    """Return the groups in the `pg_collection` of the first chunk or its inner model; empty if there is none."""
    inner = chunks[0] if chunks else None
    while inner is not None:
        if attribute(inner, "pg_collection") is not None:
            return NormGroups.of(inner.pg_collection)
        inner = attribute(inner, "module")
    return NormGroups()


class SquaredNorms:
    """Squared norms per parameter, summed over the shards of all ranks.

    Collective over all groups; the results stay on the device.
    """

    def __init__(self, pieces: Sequence[ParameterShard], groups: NormGroups) -> None:
        self._groups = groups
        self.dense = [piece for piece in pieces if not piece.is_expert]
        self.experts = [piece for piece in pieces if piece.is_expert]
        self.dense_squares = _squares(self.dense, dp=groups.dp, tp=groups.tp)
        self.expert_squares = _squares(self.experts, dp=groups.expert_dp, tp=groups.expert_tp)
        # a parameter of all experts of a layer is shared, by all ranks but the first
        self.expert_squares = _own(self.experts, self.expert_squares)
        _sum(self.expert_squares, groups.ep)

    def total(self) -> Tensor:
        """Return the sum over all parameters of all stages; tied embeddings count once."""
        device = device_of(self._groups.pp) if not self.dense else self.dense_squares.device
        dense = _own(self.dense, self.dense_squares).sum().to(device)
        total = dense + self.expert_squares.sum().to(device)
        _sum(total, self._groups.pp)
        return total


def _squares(pieces: Sequence[ParameterShard], *, dp: ProcessGroup | None, tp: ProcessGroup | None) -> Tensor:
    """Return squared norms of full parameters [len(pieces)], float64."""
    if not pieces:
        # The other ranks of these groups have the same parameters, so that none of them enters the collective.
        return torch.zeros(0, dtype=torch.float64)
    spread = [piece.value for piece in pieces if isinstance(piece.value, DTensor)]
    of_spread = iter(dtensor_squares(spread).unbind() if spread else ())
    squares = torch.stack(
        [next(of_spread) if isinstance(piece.value, DTensor) else _square(piece) for piece in pieces]
    )
    sharded = _mask([piece.sharded for piece in pieces], like=squares)
    parts = torch.where(sharded > 0, squares, 0.0)
    _sum(parts, dp)
    squares = torch.where(sharded > 0, parts, squares)
    squares = torch.where(_mask([piece.counts(tp) for piece in pieces], like=squares) > 0, squares, 0.0)
    _sum(squares, tp)
    return squares


def _own(pieces: Sequence[ParameterShard], squares: Tensor) -> Tensor:
    """Return squares with 0 for copies of parameters of other ranks."""
    flags = [param_is_not_shared(piece.parameter) for piece in pieces]
    return torch.where(_mask(flags, like=squares) > 0, squares, 0.0)


def _mask(flags: Sequence[bool], *, like: Tensor) -> Tensor:
    """Return 1 for True and 0 for False, without a host synchronization."""
    return to_device(torch.tensor(flags, dtype=like.dtype), like.device)


def _square(piece: ParameterShard) -> Tensor:
    if piece.value is None:
        return torch.zeros((), dtype=torch.float64, device=piece.parameter.device)
    norm: Tensor = torch.linalg.vector_norm(piece.value.detach(), dtype=torch.float32)
    return norm.double().square()


def dtensor_squares(params: Sequence[Any]) -> Tensor:
    """Return squared norms of full DTensors [len(params)], float64. Collective over their meshes.

    Raises:
        RuntimeError: a DTensor holds partial sums.
    """
    squares = [
        torch.linalg.vector_norm(parameter.to_local().detach(), dtype=torch.float32).double() ** 2
        for parameter in params
    ]
    kinds: dict[Any, list[int]] = {}
    for index, parameter in enumerate(params):
        kinds.setdefault((parameter.device_mesh, parameter.placements), []).append(index)
    for (mesh, placements), indices in kinds.items():
        parts = torch.stack([squares[index] for index in indices])
        for dimension, placement in enumerate(placements):
            if placement.is_partial():
                raise RuntimeError(
                    f"norm of a DTensor: placement {placement} holds partial sums. Their norm is not the norm of the "
                    "sum. Reduce the tensor first, with redistribute()."
                )
            if not placement.is_replicate():
                _sum(parts, mesh.get_group(dimension))
        for index, part in zip(indices, parts.unbind(), strict=True):
            squares[index] = part
    return torch.stack(squares)


def _sum(numbers: Tensor, group: ProcessGroup | None) -> None:
    if not is_alone(group) and numbers.numel():
        dist.all_reduce(numbers, group=group)


def parameter_shards(
    chunks: Sequence[Any], named: Sequence[tuple[str, Any]], groups: NormGroups, *, weights: bool = False
) -> list[ParameterShard]:
    """Return the parts of parameters on this rank: of the float32 main parameters, unless `weights` is set.

    The precision-aware optimizer keeps all main parameters itself: then a rank finds none, and the weights count. Of
    weights that a distributed optimizer updates, each rank contributes the shard that it updates, because a rank
    receives the others during its next forward pass (`overlap_param_gather`).
    """
    main_params_sharded = [parameter for _, parameter in named if attribute(parameter, "main_param_sharded")]
    no_main_params = all(attribute(parameter, "main_param") is None for parameter in main_params_sharded)
    weights = weights or (bool(main_params_sharded) and no_main_params)
    own = {} if groups.dp is None else buffer_shards(chunks, "param_data")
    shards = []
    for name, parameter in named:
        half = parameter.dtype not in (torch.float32, torch.float64)
        is_sharded = half and not weights and bool(attribute(parameter, "main_param_sharded"))
        main = attribute(parameter, "main_param") if half and not weights else None
        value = main if main is not None or is_sharded else parameter
        if value is parameter and id(parameter) in own:
            value, is_sharded = own[id(parameter)], True
        shards.append(ParameterShard(name=name, parameter=parameter, value=value, sharded=is_sharded))
    return shards


def buffer_shards(chunks: Sequence[Any], buffer: Literal["grad_data", "param_data"]) -> dict[int, Tensor]:
    """Return this rank's shards of gradients or weights, by parameter id, if Megatron's DDP distributes them.

    The n-th part of each bucket belongs to rank n: only it holds reduced gradients after the reduce-scatter, and
    updated weights after the optimizer step. Weights that are not in the buffer, as in 8 bits, have no shards.
    """
    shards: dict[int, Tensor] = {}
    for chunk in chunks:
        if not has_distributed_optimizer(chunk) or not hasattr(chunk, "bucket_groups"):
            continue
        for bucket_group in [*chunk.bucket_groups, *chunk.expert_parallel_bucket_groups]:
            ranks = bucket_group.intra_distributed_optimizer_instance_group
            for bucket in bucket_group.buckets:
                data = getattr(bucket, buffer)
                if data is None:
                    continue
                length = data.numel() // ranks.size()
                own = (ranks.rank() * length, (ranks.rank() + 1) * length)
                for parameter, (start, end) in bucket.param_to_index.items():
                    if buffer == "param_data" and not _shares_memory(parameter, data):
                        continue
                    low, high = max(start, own[0]), max(start, own[0], min(end, own[1]))
                    shards[id(parameter)] = data[low:high]
    return shards


def _shares_memory(parameter: Tensor, data: Tensor) -> bool:
    return (
        parameter.dtype == data.dtype
        and parameter.untyped_storage().data_ptr() == data.untyped_storage().data_ptr()
    )


def _fsdp_parameters(chunks: Sequence[Any]) -> list[Tensor]:
    parameters: list[Tensor] = []
    for chunk in chunks:
        chunk.stop_communication()
    for name, parameter in named_parameters(chunks):
        if not isinstance(parameter, DTensor):
            raise RuntimeError(  # noqa: TRY004 - the exception type of Megatron's function of this name
                f"calc_params_l2_norm: {name} is a {type(parameter).__name__}, not a DTensor. use_megatron_fsdp=True "
                "requires a model wrapped in FSDP. Pass the wrapped model, or use_megatron_fsdp=False."
            )
        parameters.append(parameter)
    return parameters
