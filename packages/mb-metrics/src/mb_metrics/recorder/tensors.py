"""Adapter for torch: device scalars that are copied to the host together, once per log interval."""

from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from mb_metrics.recorder.reductions import device_of

_Kind = tuple[torch.device, torch.dtype]


class PackedScalars(NamedTuple):
    """Metrics of one step, packed into one vector on their device: shape [len(names)]."""

    names: tuple[str, ...]
    vector: Tensor


def pack(values: Mapping[str, Tensor]) -> list[PackedScalars]:
    """Copy one-element tensors into vectors, one per device and dtype, without a host synchronization.

    The copy preserves this step's value if the next step overwrites the buffer (output of a CUDA graph, in-place sum).
    One `stack` also costs less than detaching each tensor.

    Raises:
        TypeError: a tensor is distributed over ranks (a DTensor).
        ValueError: a tensor does not have exactly one element.
    """
    groups: dict[_Kind, dict[str, Tensor]] = {}
    device = dtype = None
    for name, value in values.items():
        if value.numel() != 1 or hasattr(value, "full_tensor") or value.is_complex():
            raise _invalid_scalar_error(name, value)
        if value.dtype is not dtype or value.device != device:  # usually identical for all values
            device, dtype = value.device, value.dtype
            group = groups.setdefault((device, dtype), {})
        group[name] = value if value.dim() == 0 else value.reshape(())
    with torch.no_grad():
        return [PackedScalars(tuple(group), torch.stack(tuple(group.values()))) for group in groups.values()]


def pack_vector(names: tuple[str, ...], vector: Tensor, *, different: int) -> PackedScalars:
    """Copy a vector with the values of several metrics, of which `different` have different names. No synchronization.

    Raises:
        TypeError: the value is not a tensor, or is distributed over ranks (a DTensor).
        ValueError: the vector does not have one element for each name, or a name is given twice.
    """
    if not isinstance(vector, Tensor) or hasattr(vector, "full_tensor"):
        raise TypeError(
            f"metrics: the value of {len(names)} names is a {type(vector).__name__}. Pass one torch vector on the "
            "device of this rank, with an element for each name."
        )
    if not vector.numel() == len(names) == different:
        raise ValueError(
            f"metrics: a vector of shape {tuple(vector.shape)} has {len(names)} names, {different} of them "
            "different. Pass a different name for each element."
        )
    return PackedScalars(names, vector.detach().reshape(-1).clone())


def _invalid_scalar_error(name: str, value: Tensor) -> Exception:
    if value.numel() != 1:
        return ValueError(
            f"metrics: {name!r} has shape {tuple(value.shape)}. A metric is a single number. Reduce it first, for "
            "example with .mean()."
        )
    if value.is_complex():
        return TypeError(
            f"metrics: {name!r} is complex. A metric is a real number. Pass .abs(), .real or .imag."
        )
    return TypeError(
        f"metrics: {name!r} is distributed over ranks ({type(value).__name__}). Gathering it is a collective, which "
        "one rank must not start alone. Pass value.full_tensor(), on every rank."
    )


def without(packed: Sequence[PackedScalars], names: Collection[str]) -> list[PackedScalars]:
    """Return packed metrics without those in `names`, without a host synchronization."""
    kept = []
    for part in packed:
        keep = [index for index, name in enumerate(part.names) if name not in names]
        if len(keep) == len(part.names):
            kept.append(part)
        elif keep:
            vector = torch.stack([part.vector[index] for index in keep])
            kept.append(PackedScalars(tuple(part.names[index] for index in keep), vector))
    return kept


def reduce_over_ranks(
    steps: Sequence[tuple[Mapping[str, float], Sequence[PackedScalars]]],
    *,
    how: Mapping[str, str],
    group: dist.ProcessGroup,
) -> list[PackedScalars]:
    """Return the metrics of each step reduced over a group, followed by the number of ranks that had each metric.

    Collective over `group`: one all-gather of 16 bytes per rank, step and metric, after which every rank reduces
    locally, because one all-reduce cannot compute sums and maxima together. Does not synchronize with the device.

    Args:
        steps: Numbers by name and packed device values of each step; the same number of steps on every rank.
        how: Metric name to "mean", "sum" or "max"; identical on every rank. Other metrics are ignored.
        group: The ranks.
    """
    names = sorted(how, key=lambda name: (how[name], name))
    device = device_of(group)
    own = _table(steps, names, device=device)
    gathered = own.new_empty(group.size() * own.numel())
    dist.all_gather_into_tensor(gathered, own.view(-1), group=group)
    values, flags = gathered.view(group.size(), *own.shape).unbind(dim=1)  # each [ranks, steps, names]
    present = flags > 0
    counts = present.sum(dim=0)
    totals = values.masked_fill(~present, 0.0).sum(dim=0)
    largest = values.masked_fill(~present, -torch.inf).amax(dim=0)
    by_reduction = {"max": largest, "mean": totals / counts, "sum": totals}
    reduced = torch.stack([by_reduction[how[name]][:, column] for column, name in enumerate(names)], dim=1)
    return [PackedScalars(tuple(names), row) for table in (reduced, counts.to(own.dtype)) for row in table]


def _table(
    steps: Sequence[tuple[Mapping[str, float], Sequence[PackedScalars]]],
    names: Sequence[str],
    *,
    device: torch.device,
) -> Tensor:
    """Return values and presence flags, of shape [2, steps, names], on the device of the group."""
    columns = {name: column for column, name in enumerate(names)}
    values, flags = ([[0.0] * len(names) for _ in steps] for _ in range(2))
    parts: list[Tensor] = []
    positions: list[int] = []
    for row, (numbers, packed) in enumerate(steps):
        # A device value is NaN in `numbers`, which sets its flag here; the value itself is copied over it below.
        for name in numbers.keys() & columns.keys():
            values[row][columns[name]] = numbers[name]
            flags[row][columns[name]] = 1.0
        not_reduced = {name for part in packed for name in part.names} - columns.keys()
        for part in without(packed, not_reduced):
            parts.append(part.vector.to(device, torch.float64, non_blocking=device.type == "cuda"))
            positions += [row * len(names) + columns[name] for name in part.names]
    host = torch.tensor([values, flags], dtype=torch.float64).view(2, len(steps), len(names))
    table = to_device(host, device)
    if parts:
        table.view(-1).index_copy_(0, to_device(torch.tensor(positions), device), torch.cat(parts))
    return table


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy to a device through pinned memory; a copy from pageable memory would synchronize with the host."""
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def timing_event() -> torch.cuda.Event:
    """Record a timing event on the current stream, without a host synchronization."""
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


class HostCopy:
    """Copy of the vectors of several steps to the host: one transfer per device.

    From CUDA the copy is asynchronous and starts after the work queued on the current stream; from other devices it
    is complete when the constructor returns.
    """

    def __init__(self, steps: Sequence[Sequence[PackedScalars]]) -> None:
        self._steps = [[(packed.names, _kind(packed)) for packed in step] for step in steps]
        self._events: list[torch.cuda.Event] = []
        vectors: dict[_Kind, list[Tensor]] = {}
        for step in steps:
            for packed in step:
                vectors.setdefault(_kind(packed), []).append(packed.vector)
        joined = {kind: torch.cat(parts) for kind, parts in vectors.items()}
        self._lengths = {kind: len(vector) for kind, vector in joined.items()}
        # One vector per device: a transfer costs some microseconds, whatever the number of metrics.
        self._host = {device: self._copy(device, joined) for device in {kind[0] for kind in joined}}

    def ready(self) -> bool:
        """Return True if `read` would return without waiting."""
        return all(event.query() for event in self._events)  # type: ignore[no-untyped-call]

    def read(self) -> list[dict[str, float]]:
        """Return each step's values by name; waits for a copy that is still in flight."""
        for event in self._events:
            event.synchronize()
        numbers = {device: iter(vector.tolist()) for device, vector in self._host.items()}
        columns = {
            kind: iter(list(islice(numbers[kind[0]], length))) for kind, length in self._lengths.items()
        }
        return [{name: next(columns[kind]) for names, kind in step for name in names} for step in self._steps]

    def _copy(self, device: torch.device, joined: Mapping[_Kind, Tensor]) -> Tensor:
        # float64 represents every float32 and every integer below 2**53 exactly; MPS does not support it.
        wide = torch.float32 if device.type == "mps" else torch.float64
        vector = torch.cat([part.to(wide) for kind, part in joined.items() if kind[0] == device])
        if device.type != "cuda":
            return vector.to("cpu")
        host = torch.empty(vector.shape, dtype=vector.dtype, pin_memory=True)
        with torch.cuda.device(device):
            host.copy_(vector, non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        self._events.append(event)
        return host


def _kind(packed: PackedScalars) -> _Kind:
    return packed.vector.device, packed.vector.dtype
