"""Recorded steps on their way to the sinks: numbers on the host and tensors that are still on the device."""

import math
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache
from importlib import import_module
from numbers import Real
from typing import Any, Literal, Protocol

from mb_metrics.recorder.record import MetricsRow


class DeviceScalar(Protocol):
    """A torch tensor with one element, on any device."""

    def numel(self) -> int:
        """Return the number of elements."""


Value = float | DeviceScalar | None
Sampler = Callable[[int], Mapping[str, Value]]
"""Function that is called with the step at the end of each log interval and returns metrics of its last row."""
Reduction = Literal["mean", "sum", "max"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep:
    """Step as recorded: a row, in which NaN replaces each device value, and these values packed on their device."""

    row: MetricsRow
    packed: Sequence[Any]

    def with_values(self, values: Mapping[str, float], packed: Sequence[Any] = ()) -> "RecordedStep":
        """Return a copy of the step with additional metrics appended."""
        row = replace(self.row, values={**self.row.values, **values})
        return RecordedStep(row=row, packed=[*self.packed, *packed])

    def with_samples(self, samplers: Iterable[Sampler]) -> "RecordedStep":
        """Return a copy of the step with the metrics of samplers.

        Raises:
            TypeError: a sampler returned no mapping.
        """
        step = self
        for sample in samplers:
            values = sample(self.row.step)
            if not isinstance(values, Mapping):
                raise TypeError(
                    f"metrics.samplers: {sample!r:.60} returned {values!r:.50}, not a mapping. Return metrics by name, "
                    "or {} if there are none."
                )
            step = step.with_values(*split_device_values(values))
        return step

    def without(self, names: Collection[str]) -> "RecordedStep":
        """Return a copy of the step without the metrics in `names`."""
        kept = {name: value for name, value in self.row.values.items() if name not in names}
        packed = _tensors().without(self.packed, names) if self.packed else ()
        return RecordedStep(row=replace(self.row, values=kept), packed=packed)


def split_device_values(values: Mapping[Any, Value]) -> tuple[dict[str, float], Sequence[Any]]:
    """Split metrics into host numbers and packed device tensors, without a host synchronization.

    The numbers contain NaN as a placeholder for each tensor, which preserves the order. A value of None means that
    the metric was not measured in this step; it is omitted. torch is imported only if a value is a tensor.

    A key may be a tuple of names, with a vector of their values: one copy instead of one per metric.

    Raises:
        TypeError: a value is neither a number nor a tensor that this rank can read alone, or a name is not text.
        ValueError: a tensor has not exactly one element, or a vector not one for each of its names.
    """
    torch = sys.modules.get("torch")
    tensor_type: Any = () if torch is None else torch.Tensor  # without torch no value can be a tensor
    numbers: dict[str, float] = {}
    tensors: dict[str, DeviceScalar] = {}
    vectors: list[Any] = []
    for name, value in values.items():
        if isinstance(name, tuple):
            placeholders = dict.fromkeys(name, math.nan)
            vectors.append(_tensors().pack_vector(name, value, different=len(placeholders)))
            numbers = numbers | placeholders if numbers else placeholders
        elif isinstance(value, (float, int)):
            numbers[name] = float(value)
        elif isinstance(value, tensor_type):
            tensors[name] = value
            numbers[name] = math.nan
        elif value is None:
            continue
        elif isinstance(value, (Real, Decimal)):
            numbers[name] = float(value)
        elif (number := _only_element(value)) is not None:
            numbers[name] = number
        else:
            raise TypeError(
                f"metrics: {name!r} is a {type(value).__name__}; a metric is a number, or a tensor or array with one "
                "element. Convert it or leave it out."
            )
    unnamed = [name for name in numbers if not isinstance(name, str)]
    if unnamed:
        raise TypeError(
            f"metrics: {unnamed[0]!r:.50} is a {type(unnamed[0]).__name__}, but a name of a metric is text. Pass a str."
        )
    return numbers, [*_tensors().pack(tensors), *vectors] if tensors else vectors


def _only_element(value: Any) -> float | None:
    """Return the number in an array or a scalar of NumPy, or of a library with its interface; None for others."""
    item = getattr(value, "item", None)
    if getattr(value, "size", None) != 1 or not callable(item):
        return None
    number = item()
    return float(number) if isinstance(number, (Real, Decimal)) else None


class RankReduction:
    """Reduction of selected metrics over the ranks of a process group.

    Args:
        group: A torch process group.
        how: Metric name to "mean", "sum" or "max"; identical on every rank.

    Raises:
        ValueError: there is no group, or `how` names another reduction.
    """

    def __init__(self, group: object | None, how: Mapping[str, Reduction]) -> None:
        if group is None:
            raise ValueError(
                f"metrics.reduce: no group to reduce {', '.join(how)} over. The values of one rank would be reported "
                "as those of all ranks. Pass group, or omit reduce."
            )
        for name, reduction in how.items():
            if reduction not in ("mean", "sum", "max"):
                raise ValueError(
                    f"metrics.reduce: unknown reduction ({name!r}: {reduction!r}). Supported reductions are mean, sum "
                    "and max. Choose one of them."
                )
        self._group = group
        self._how = how

    def without_reduced(self, steps: Sequence[RecordedStep]) -> list[RecordedStep]:
        """Return the steps without the reduced metrics, for a rank that cannot take part in a collective."""
        return [step.without(self._how) for step in steps]

    def reduce_batch(self, steps: Sequence[RecordedStep], *, read: bool) -> "StepBatch | None":
        """Reduce all metrics of some steps in one collective and, if `read` is True, start the copy to the host.

        Collective over the group; every rank passes the same number of steps. A rank that did not record a metric in
        a step is excluded from its reduction. Does not synchronize with the device.
        """
        tensors = _tensors()
        values = [(step.row.values, step.packed) for step in steps]
        reduced = tensors.reduce_over_ranks(values, how=self._how, group=self._group)
        return StepBatch(steps, reduced=reduced) if read else None


class StepBatch:
    """Steps whose device values are copied to the host together; the copy starts at construction."""

    def __init__(self, steps: Sequence[RecordedStep], *, reduced: Sequence[Any] = ()) -> None:
        self._steps = tuple(steps)
        self._reduced = bool(reduced)
        self._copy: Any = None  # a HostCopy, of the adapter
        packed = [step.packed for step in steps] + [[part] for part in reduced]
        if any(packed):
            self._copy = _tensors().HostCopy(packed)

    def ready(self) -> bool:
        """Return True if `rows` would return without waiting for the device."""
        return self._copy is None or bool(self._copy.ready())

    def rows(self) -> list[MetricsRow]:
        """Return the finished rows; waits for the device if the copy is still in flight."""
        if self._copy is None:
            return [step.row for step in self._steps]
        # The copy has the device values of each step, then, after a reduction, the reduced metrics of each step, and
        # then the number of ranks that had each of them. A metric that no rank had keeps the value of this rank.
        copied, count = self._copy.read(), len(self._steps)
        rows = [{**step.row.values, **values} for step, values in zip(self._steps, copied, strict=False)]
        if self._reduced:
            reduced, rank_counts = copied[count : 2 * count], copied[2 * count :]
            for row, values, ranks in zip(rows, reduced, rank_counts, strict=True):
                row.update({name: value for name, value in values.items() if ranks[name]})
        return [replace(step.row, values=values) for step, values in zip(self._steps, rows, strict=True)]


@cache
def _tensors() -> Any:
    """Import the torch adapter. Only recording of tensors and reductions over ranks need it."""
    return import_module("mb_metrics.recorder.tensors")
