"""The door to torch: scalars that stay on their device until a whole interval of them is copied at once."""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

_Kind = tuple[torch.device, torch.dtype]


class Packed(NamedTuple):
    """Some metrics of one step in one vector on their device: shape [len(names)]."""

    names: tuple[str, ...]
    vector: Tensor


def pack(values: Mapping[str, Tensor]) -> list[Packed]:
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
            raise _refusal(name, value)
        if value.dtype is not dtype or value.device != device:  # as a rule they are all alike
            device, dtype = value.device, value.dtype
            group = groups.setdefault((device, dtype), {})
        group[name] = value if value.dim() == 0 else value.reshape(())
    with torch.no_grad():
        return [Packed(tuple(group), torch.stack(tuple(group.values()))) for group in groups.values()]


def _refusal(name: str, value: Tensor) -> Exception:
    if value.numel() != 1:
        return ValueError(
            f"metrics: {name!r} has shape {tuple(value.shape)}; a metric is one number. Reduce it first, with "
            ".mean() say."
        )
    return TypeError(
        f"metrics: {name!r} is a {type(value).__name__}, spread over ranks, and gathering it is a collective "
        "that one rank alone must not start. Pass value.full_tensor(), on every rank."
    )


class HostCopy:
    """The vectors of several steps on their way to the host: one copy per device.

    From CUDA the copy is asynchronous and begins after what the current stream has queued; from elsewhere
    it is done when the constructor returns.
    """

    def __init__(self, steps: Sequence[Sequence[Packed]]) -> None:
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


def _kind(packed: Packed) -> _Kind:
    return packed.vector.device, packed.vector.dtype
