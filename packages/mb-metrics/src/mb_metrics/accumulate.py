"""Steps between their recording and their delivery: host numbers beside tensors that are still on the device."""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from numbers import Real
from typing import Any, Protocol

from mb_metrics.record import Row


class DeviceScalar(Protocol):
    """A torch tensor with one element, on any device."""

    def numel(self) -> int:
        """Return the number of elements."""


Value = float | DeviceScalar | None


class _Copy(Protocol):
    def ready(self) -> bool: ...

    def read(self) -> list[dict[str, float]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep:
    """A step as recorded: a row whose device values are NaN, and those values packed on their device."""

    row: Row
    packed: Sequence[Any]

    def with_values(self, values: Mapping[str, float]) -> "RecordedStep":
        """Return the same step with more metrics after its own."""
        return replace(self, row=replace(self.row, values={**self.row.values, **values}))


def take(values: Mapping[str, Value]) -> tuple[dict[str, float], Sequence[Any]]:
    """Split metrics into host numbers and packed device tensors, without a host synchronisation.

    The numbers have a NaN in place of each tensor, so that the order is kept. None means that the metric was not
    measured in this step: it is left out. torch is imported only when a tensor is among the values.

    Raises:
        TypeError: a value is neither a number nor a tensor that this rank can read alone.
        ValueError: a tensor has not exactly one element.
    """
    tensor_type = _tensor_type()
    numbers: dict[str, float] = {}
    tensors: dict[str, DeviceScalar] = {}
    for name, value in values.items():
        if isinstance(value, (float, int)):
            numbers[name] = float(value)
        elif isinstance(value, tensor_type):
            tensors[name] = value
            numbers[name] = math.nan
        elif value is None:
            continue
        elif isinstance(value, Real):
            numbers[name] = float(value)
        else:
            raise TypeError(
                f"metrics: {name!r} is a {type(value).__name__}; a metric is a number or a torch tensor with one "
                "element. Convert it or leave it out."
            )
    return numbers, import_module("mb_metrics.tensors").pack(tensors) if tensors else ()


def _tensor_type() -> Any:
    """Return torch's tensor type, or what no value is an instance of: who has a tensor has imported torch."""
    torch = sys.modules.get("torch")
    return () if torch is None else torch.Tensor


class Batch:
    """Steps whose device values are copied to the host together; the copy starts at construction."""

    def __init__(self, steps: Sequence[RecordedStep]) -> None:
        self._steps = tuple(steps)
        self._copy: _Copy | None = None
        if any(step.packed for step in steps):
            self._copy = import_module("mb_metrics.tensors").HostCopy([step.packed for step in steps])

    def ready(self) -> bool:
        """Tell whether `rows` would return without waiting for the device."""
        return self._copy is None or self._copy.ready()

    def rows(self) -> list[Row]:
        """Return the finished rows, waiting for the device where the copy is still under way."""
        if self._copy is None:
            return [step.row for step in self._steps]
        return [
            replace(step.row, values={**step.row.values, **values})
            for step, values in zip(self._steps, self._copy.read(), strict=True)
        ]
