"""Parser for the step-time line that Megatron-Bridge and this package write and CloudAI reads."""

import re
from dataclasses import dataclass

from mb_metrics import names
from mb_metrics.parse.log_lines import LineDefect, last_stamp

_LINE = re.compile(
    r"Step Time\s*:\s*([0-9]+(?:\.[0-9]+)?)\s*s.*?GPU utilization:\s*([0-9]+(?:\.[0-9]+)?)\s*(?:MODEL_)?TFLOP/s/GPU",
    re.IGNORECASE,
)
_BEGIN = re.compile(r"Step Time\s*:", re.IGNORECASE)
_TOKENS = re.compile(r"\|\s*tokens per second:\s*([0-9.]+)\s*(?:\||$)")
_MFU = re.compile(r"\|\s*MFU:\s*([0-9.]+)% of [0-9.]+ TFLOP/s")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeLine:
    """Parsed step-time line."""

    seconds: float
    tflops_per_device: float
    values: dict[str, float]
    """All values of the line as metrics; 0.0 TFLOP/s means "not known" and is omitted."""
    time: float
    """Time stamp before the line; NaN: none."""


def step_time_of_line(line: str) -> StepTimeLine | LineDefect | None:
    """Parse a step-time line; return None if the line is not a step-time line."""
    begin = _BEGIN.search(line)
    if begin is None:
        return None
    found = _LINE.search(line, begin.start())
    if found is None:
        return (
            LineDefect.CUT
            if line[begin.end() :].count(":") < 1 or "TFLOP" not in line
            else LineDefect.MALFORMED
        )
    seconds, tflops = float(found[1]), float(found[2])
    values = {names.ITERATION_TIME: seconds}
    if tflops > 0:
        values[names.TFLOPS_PER_DEVICE] = tflops
    tokens, mfu = _TOKENS.search(line, found.end()), _MFU.search(line, found.end())
    if tokens:
        values["throughput/tokens_per_sec"] = float(tokens[1])
    if mfu:
        values[names.MFU] = float(mfu[1]) / 100
    return StepTimeLine(
        seconds=seconds, tflops_per_device=tflops, values=values, time=last_stamp(line[: begin.start()])
    )
