"""Parsers for lines of Megatron-LM, Megatron-Bridge and the console of this package, which share their fields."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from mb_metrics import names
from mb_metrics.parse.log_lines import NONFINITE_STEPS, SKIPPED_STEPS, LineDefect, last_stamp, number
from mb_metrics.recorder.record import Evaluation, MetricsRow
from mb_metrics.run.events import RunEvent

_HEAD = re.compile(r"(?<!at )\biteration\s+(\d{1,18})\s*(?:/\s*(\d{1,18})\s*)?\|")
_VALIDATION = re.compile(r"validation loss at ([^|]*?)\s*\|")
_EVENTS = {
    "save": re.compile(
        r"successfully saved checkpoint from iteration\s+(\d{1,18})"
        r"|scheduled an async checkpoint save at iteration\s+(\d{1,18})"
    ),
    "resume": re.compile(
        r"successfully loaded checkpoint from .*?iteration\s+(\d{1,18})|^\s*resumed from .* at step (\d{1,18})\s*$"
    ),
}
_STEP_TIME = re.compile(
    r"Step Time\s*:\s*([0-9]+(?:\.[0-9]+)?)\s*s.*?GPU utilization:\s*([0-9]+(?:\.[0-9]+)?)\s*(?:MODEL_)?TFLOP/s/GPU",
    re.IGNORECASE,
)
_STEP_TIME_BEGIN = re.compile(r"Step Time\s*:", re.IGNORECASE)
_TOKENS = re.compile(r"\|\s*tokens per second:\s*([0-9.]+)\s*(?:\||$)")
_MFU = re.compile(r"\|\s*MFU:\s*([0-9.]+)% of [0-9.]+ TFLOP/s")
_CONSUMED = "consumed samples"
_LAST_PIECE = "number of nan iterations"
_NAMES = {
    "skipped samples": names.SKIPPED_SAMPLES,
    "elapsed time per iteration (ms)": names.ITERATION_TIME,
    "elapsed time per iteration (s)": names.ITERATION_TIME,
    "throughput per GPU (TFLOP/s/GPU)": names.TFLOPS_PER_DEVICE,
    "energy per GPU (J/iter/GPU)": names.ENERGY,
    "power per GPU (W/GPU)": names.POWER,
    "learning rate": names.LEARNING_RATE,
    "decoupled learning rate": names.DECOUPLED_LEARNING_RATE,
    "global batch size": names.BATCH_SIZE,
    "loss scale": names.LOSS_SCALE,
    "grad norm": names.GRAD_NORM,
    "num zeros": names.NUM_ZEROS,
    "params norm": names.PARAMS_NORM,
    "max attention logit": names.MAX_ATTENTION_LOGIT,
    "number of skipped iterations": SKIPPED_STEPS,
    _LAST_PIECE: NONFINITE_STEPS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationLine:
    """Parsed iteration line: a row that represents the steps since the previous line."""

    row: MetricsRow
    total_steps: int | None


def iteration_lines(line: str) -> Iterator[IterationLine | LineDefect]:
    """Yield every iteration line in a line of text; two processes may have written to the same line.

    Losses are means over the interval; the numbers of skipped and NaN steps are under "interval/". Text after the last
    field, and unknown fields that are not numbers, are ignored.
    """
    heads = list(_HEAD.finditer(line))
    ends = [*(head.start() for head in heads[1:]), len(line)][: len(heads)]
    begin = 0
    for head, end in zip(heads, ends, strict=True):
        yield _iteration(head, line[head.end() : end], before=line[begin : head.start()])
        begin = end


def _iteration(head: re.Match[str], text: str, *, before: str) -> IterationLine | LineDefect:
    pieces, closed = _pieces(text)
    values: dict[str, float] = {}
    consumed: int | None = None
    for name, written in pieces.items():
        value = number(written.split("/")[0])  # some trainers print current/mean
        if value is None and written not in ("None", "N/A") and (name in _NAMES or name == _CONSUMED):
            return LineDefect.MALFORMED
        if value is None:
            continue
        if name == _CONSUMED:
            if not math.isfinite(value):
                return LineDefect.MALFORMED
            consumed = int(value)
        else:
            values[_NAMES.get(name, name)] = value / 1000 if name.endswith("(ms)") else value
    if not (closed and pieces):
        return LineDefect.CUT
    row = MetricsRow(
        step=int(head[1]),
        time=last_stamp(before),
        values=values,
        skipped=False,
        consumed_samples=consumed,
    )
    return IterationLine(row=row, total_steps=int(head[2]) if head[2] else None)


def _pieces(text: str) -> tuple[dict[str, str], bool]:
    """Return the `name: value` fields that end in a bar, and True if the line is complete."""
    *complete, rest = text.split("|")
    pieces: dict[str, str] = {}
    for piece in complete:
        name, colon, value = piece.rpartition(": ")
        if colon:
            pieces[name.strip()] = value.strip()
        if name.strip() == _LAST_PIECE:
            return pieces, True
    return pieces, not rest.strip() or rest.lstrip().startswith("[")


def validation_line(line: str, *, last_step: int | None) -> Evaluation | LineDefect | None:
    """Return the evaluation in a line; None if there is none, or if it is on the test set.

    `last_step` is the step of a line without a step ("at the end of training").
    """
    head = _VALIDATION.search(line)
    if head is None or "test" in head[1]:
        return None
    step = re.search(r"iteration\s+(\d{1,18})", head[1])
    pieces, closed = _pieces(line[head.end() :])
    losses: dict[str, float] = {}
    for name, written in pieces.items():
        value = number(written)
        if value is None:
            return LineDefect.MALFORMED
        if name.endswith(" value"):
            losses[name.removesuffix(" value")] = value
    if not (closed and losses):
        return LineDefect.CUT
    return Evaluation(
        step=int(step[1]) if step else last_step or 0,
        time=last_stamp(line[: head.start()]),
        losses=losses,
        consumed_samples=None,
    )


def event_line(line: str) -> RunEvent | None:
    """Return the save or resume event in a line; None if there is none."""
    for kind, expression in _EVENTS.items():
        match = expression.search(line)
        if match:
            return RunEvent(kind=kind, time=last_stamp(line[: match.start()]), step=int(match[1] or match[2]))
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeLine:
    """Parsed step-time line."""

    values: dict[str, float]
    """Values of the line as metrics; 0.0 TFLOP/s means "not known" and is omitted."""
    time: float
    """Time stamp before the line; NaN: none."""


def step_time_of_line(line: str) -> StepTimeLine | LineDefect | None:
    """Return the step-time line in a line of text, which CloudAI reads, too; None if there is none."""
    begin = _STEP_TIME_BEGIN.search(line)
    if begin is None:
        return None
    match = _STEP_TIME.search(line, begin.start())
    if match is None:
        return (
            LineDefect.CUT
            if line[begin.end() :].count(":") < 1 or "TFLOP" not in line
            else LineDefect.MALFORMED
        )
    values = {names.ITERATION_TIME: float(match[1])}
    if float(match[2]) > 0:
        values[names.TFLOPS_PER_DEVICE] = float(match[2])
    tokens, mfu = _TOKENS.search(line, match.end()), _MFU.search(line, match.end())
    if tokens:
        values["throughput/tokens_per_sec"] = float(tokens[1])
    if mfu:
        values[names.MFU] = float(mfu[1]) / 100
    return StepTimeLine(values=values, time=last_stamp(line[: begin.start()]))
