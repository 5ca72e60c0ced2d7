"""Result of a replay as text and as data for JSON. No torch."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from mb_verify.replay.step import Replay

SHOWN = 10
"""Tensors that are listed without `full`."""
_KINDS = {
    "weights": "weight",
    "gradients": "gradient",
    "outputs": "output",
    "output_gradients": "gradient of output",
}
"""Entry of a row of tensor_norms.jsonl -> kind of its tensors."""
_WRAPPERS = re.compile(r"^(module\.)+")
"""Prefix of names of modules that the wrappers of a model add."""


def replay_as_data(replay: Replay) -> dict[str, object]:
    """Return a replay as JSON can hold it."""
    return {
        "step": replay.plan.step,
        "from_step": replay.plan.start,
        "equal": not replay.differences,
        "compared": list(replay.names),
        "differences": [
            {
                "step": difference.step,
                "name": difference.name,
                "recorded": difference.recorded,
                "replayed": difference.replayed,
            }
            for difference in replay.differences
        ],
        "tensor_norms": [replay.tensor_norms[step] for step in sorted(replay.tensor_norms)],
    }


def replay_as_text(replay: Replay, *, full: bool = False) -> str:
    """Return the verdict, and a table of the norms of tensors.

    Args:
        replay: The result.
        full: List all tensors in the order of the model, instead of the `SHOWN` that changed most.
    """
    return "\n".join([*verdict_lines(replay), *norm_lines(replay, full=full)])


def verdict_lines(replay: Replay) -> Iterator[str]:
    """Yield the losses of the step, and whether the replay equals the recorded run."""
    plan = replay.plan
    losses = ", ".join(
        f"{name} {value}"
        for name, value in plan.recorded[plan.step].items()
        if "loss" in name and name != "loss-scale"
    )
    yield f"step {plan.step}: {losses}"
    first, count = plan.start + 1, plan.step - plan.start
    steps = f"step {plan.step}" if count == 1 else f"{count} steps ({first} to {plan.step})"
    if replay.differences:
        yield f"different from the run: {steps} in {replay.seconds:.0f} s; first in"
        yield f"  {replay.differences[0]}"
    else:
        yield f"equal to the run, bit for bit: {steps} in {replay.seconds:.0f} s; {', '.join(replay.names)}"


def norm_lines(replay: Replay, *, full: bool) -> Iterator[str]:
    """Yield a table of the step's tensors, with the factor to the previous step if that was measured, too."""
    step = replay.plan.step
    if step not in replay.tensor_norms:
        return
    rows = list(_rows(replay.tensor_norms[step], replay.tensor_norms.get(step - 1)))
    bad = [row.name for row in rows if row.non_finite and row.kind == "output"]
    if bad:
        yield f"NaN or infinite elements first in the output of {bad[0]} ({len(bad)} outputs)"
    shown = rows if full else sorted(rows, key=_change, reverse=True)[:SHOWN]
    compared = step - 1 in replay.tensor_norms
    yield ""
    title = "tensors that changed most" if compared else "tensors"
    if full:
        title = "all tensors"
    yield f"{title} of step {step}: L2 norm of weights and gradients, root mean square of outputs"
    yield f"{'value':>12}  {f'x step {step - 1}' if compared else '':>10}  {'':<18}  tensor"
    for row in shown:
        note = f"  {row.non_finite:,} not finite" if row.non_finite else ""
        factor = "" if row.factor is None else f"{row.factor:.3g}"
        yield f"{row.value:>12.4g}  {factor:>10}  {row.kind:<18}  {row.name}{note}"
    if len(shown) < len(rows):
        yield f"{len(rows) - len(shown):,} more: --full lists all by layer, --json prints them"


@dataclass(frozen=True, slots=True, kw_only=True)
class _TensorNorm:
    """Norm of a tensor of the step, as a row of the table."""

    kind: str
    """Weight, gradient, output, or gradient of an output."""
    name: str
    value: float
    """L2 norm; of an output the root mean square."""
    factor: float | None
    """Ratio to the value of the previous step; None if that was not measured, was 0 or was not finite."""
    non_finite: int
    """Number of elements of an output that are not finite."""


def _rows(now: Mapping[str, Any], before: Mapping[str, Any] | None) -> Iterator[_TensorNorm]:
    """Yield the rows of a step, in the order of the model."""
    for key, kind in _KINDS.items():
        for name, entry in now[key].items():
            value, non_finite = _value(entry)
            factor = None
            if before is not None and name in before[key]:
                previous, _ = _value(before[key][name])
                factor = value / previous if previous and isfinite(previous) else None
            yield _TensorNorm(
                kind=kind, name=_WRAPPERS.sub("", name), value=value, factor=factor, non_finite=non_finite
            )


def _value(entry: object) -> tuple[float, int]:
    """Return the norm of a tensor and 0, or the root mean square of an output and its number of non-finite elements."""
    if isinstance(entry, dict):
        return float(entry["rms"]), int(entry["non_finite"])
    return float(entry), 0  # type: ignore[arg-type]


def _change(row: _TensorNorm) -> tuple[bool, float]:
    """Return the sort key: tensors that are not finite first, then the largest factor up or down."""
    factor, finite = row.factor, isfinite(row.value)
    if factor is None or factor <= 0 or not finite:
        return bool(row.non_finite) or not finite, 0.0
    return bool(row.non_finite), max(factor, 1 / factor)
