"""The door to torch: scalars that stay on their device until a whole interval of them is copied at once."""

from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

_Kind = tuple[torch.device, torch.dtype]


class PackedScalars(NamedTuple):
    """Some metrics of one step in one vector on their device: shape [len(names)]."""

    names: tuple[str, ...]
    vector: Tensor


def pack(values: Mapping[str, Tensor]) -> list[PackedScalars]:
    """Copy one-element tensors into vectors, one per device and dtype, without a host synchronisation.

    A copy, so that a loss buffer that the next step overwrites (a CUDA graph's output, an in-place sum) keeps
    this step's value here. One stack also costs less than to detach each tensor.

    Raises:
        TypeError: a tensor is spread over ranks (a DTensor).
        ValueError: a tensor has not exactly one element.
    """
    groups: dict[_Kind, dict[str, Tensor]] = {}
    device = dtype = None
    for name, value in values.items():
        if value.numel() != 1 or hasattr(value, "full_tensor"):
            raise _invalid_scalar_error(name, value)
        if value.dtype is not dtype or value.device != device:  # as a rule they are all alike
            device, dtype = value.device, value.dtype
            group = groups.setdefault((device, dtype), {})
        group[name] = value if value.dim() == 0 else value.reshape(())
    with torch.no_grad():
        return [PackedScalars(tuple(group), torch.stack(tuple(group.values()))) for group in groups.values()]


def _invalid_scalar_error(name: str, value: Tensor) -> Exception:
    if value.numel() != 1:
        return ValueError(
            f"metrics: {name!r} has shape {tuple(value.shape)}; a metric is one number. Reduce it first, with "
            ".mean() say."
        )
    return TypeError(
        f"metrics: {name!r} is a {type(value).__name__}, spread over ranks, and gathering it is a collective "
        "that one rank alone must not start. Pass value.full_tensor(), on every rank."
    )


def without(packed: Sequence[PackedScalars], names: Collection[str]) -> list[PackedScalars]:
    """Return packed metrics without some of them, without a host synchronisation."""
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
    """Return each step's metrics reduced over a group, then, as many again, how many ranks had each of them.

    Collective over `group`: one all-gather of 16 bytes per rank, step and metric, from which every rank reduces for
    itself, since one all-reduce cannot add up and take the largest at once. The host does not wait for the device.

    Args:
        steps: Numbers by name, and packed device values, of each step; the same number of steps on every rank.
        how: Metric name to "mean", "sum" or "max"; the same on every rank. Other metrics are passed over.
        group: The ranks.
    """
    names = sorted(how, key=lambda name: (how[name], name))
    device = _device_of(group)
    own = _table(steps, names, device=device)
    everyone = own.new_empty(group.size() * own.numel())
    dist.all_gather_into_tensor(everyone, own.view(-1), group=group)
    everyone = everyone.view(group.size(), *own.shape)
    present = everyone[:, 1] > 0
    zeros = everyone[:, 0].masked_fill(~present, 0.0)
    counts = present.sum(dim=0)
    totals = zeros.sum(dim=0)
    largest = everyone[:, 0].masked_fill(~present, -torch.inf).amax(dim=0)
    by = {"max": largest, "mean": totals / counts, "sum": totals}
    reduced = torch.stack([by[how[name]][:, column] for column, name in enumerate(names)], dim=1)
    return [PackedScalars(tuple(names), row) for table in (reduced, counts.to(own.dtype)) for row in table]


def _device_of(group: dist.ProcessGroup) -> torch.device:
    if "nccl" in dist.get_backend(group):
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _table(
    steps: Sequence[tuple[Mapping[str, float], Sequence[PackedScalars]]],
    names: Sequence[str],
    *,
    device: torch.device,
) -> Tensor:
    """Return values and whether they were measured, of shape [2, steps, names], on the device of the group."""
    columns = {name: column for column, name in enumerate(names)}
    host = [[[0.0] * len(names) for _ in steps] for _ in range(2)]
    parts: list[Tensor] = []
    places: list[int] = []
    for index, (numbers, packed) in enumerate(steps):
        for name in numbers.keys() & columns.keys():
            host[0][index][columns[name]] = numbers[name]
            host[1][index][columns[name]] = 1.0
        for part in without(packed, {name for each in packed for name in each.names} - columns.keys()):
            parts.append(part.vector.to(device, torch.float64, non_blocking=device.type == "cuda"))
            places += [index * len(names) + columns[name] for name in part.names]
    table = to_device(torch.tensor(host, dtype=torch.float64).view(2, len(steps), len(names)), device)
    if parts:
        table.view(-1).index_copy_(0, to_device(torch.tensor(places), device), torch.cat(parts))
    return table


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy without a host synchronisation, which a copy from pageable memory would be."""
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def timing_event() -> torch.cuda.Event:
    """Record an event with a time on the current stream, without a host synchronisation."""
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


class HostCopy:
    """The vectors of several steps on their way to the host: one copy per device.

    From CUDA the copy is asynchronous and begins after what the current stream has queued; from elsewhere
    it is done when the constructor returns.
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
        self._host = {device: self._copy(device, joined) for device in {kind[0] for kind in joined}}

    def ready(self) -> bool:
        """Tell, without waiting, whether `read` would return at once."""
        return all(event.query() for event in self._events)  # type: ignore[no-untyped-call]

    def read(self) -> list[dict[str, float]]:
        """Return each step's values by name, waiting for the copy if it is still under way."""
        for event in self._events:
            event.synchronize()
        numbers = {device: iter(vector.tolist()) for device, vector in self._host.items()}
        columns = {
            kind: iter(list(islice(numbers[kind[0]], length))) for kind, length in self._lengths.items()
        }
        return [{name: next(columns[kind]) for names, kind in step for name in names} for step in self._steps]

    def _copy(self, device: torch.device, joined: Mapping[_Kind, Tensor]) -> Tensor:
        # Doubles hold every float and every integer below 2**53; Apple's GPUs have none.
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
