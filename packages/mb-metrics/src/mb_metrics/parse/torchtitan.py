"""Parsers for lines of torchtitan: step, evaluation, checkpoint."""

import re

from mb_metrics import names
from mb_metrics.parse.log_lines import LineDefect, last_stamp, number
from mb_metrics.recorder.record import Evaluation, MetricsRow
from mb_metrics.run.events import RunEvent

LOSS = "loss"
MEMORY = "memory/max-reserved-gib"
MEMORY_SHARE = "memory/max-reserved-percent"
TOKENS = "throughput/device/tokens_per_sec"

_HEAD = re.compile(r"(validate )?\bstep:\s*(\d{1,18})\s+(?=loss:)")
_PIECE = re.compile(r"(\w+):\s*(\S+)(?:\s+|$)")
_MEMORY = re.compile(r"([\d.]+)GiB\(([\d.]+)%\)")
_SAVED = re.compile(r"Finished saving the checkpoint.*?\bin ([\d.]+) seconds")
_NAMES = {
    "loss": LOSS,
    "grad_norm": names.GRAD_NORM,
    "tps": TOKENS,
    "tflops": names.TFLOPS_PER_DEVICE,
    "lr": names.LEARNING_RATE,
}


def torchtitan_line(
    line: str, *, last_step: int | None
) -> MetricsRow | Evaluation | RunEvent | LineDefect | None:
    """Return the record in a line of torchtitan's log; None if there is none.

    TFLOP/s and tokens per second are per device; "mfu" is converted to a fraction. `last_step` is the step of a save.
    """
    saved = _SAVED.search(line)
    if saved:
        return RunEvent(kind="save", time=last_stamp(line), step=last_step, seconds=float(saved[1]))
    head = _HEAD.search(line)
    if head is None:
        return None
    values = _values(line[head.end() :], last="tps" if head[1] else "mfu")
    if isinstance(values, LineDefect):
        return values
    time, step = last_stamp(line[: head.start()]), int(head[2])
    if head[1]:
        return Evaluation(step=step, time=time, losses={LOSS: values[LOSS]}, consumed_samples=None)
    return MetricsRow(step=step, time=time, values=values, skipped=False, consumed_samples=None)


def _values(text: str, *, last: str) -> dict[str, float] | LineDefect:
    values: dict[str, float] = {}
    is_complete = False
    for name, written in _PIECE.findall(text):
        memory = _MEMORY.fullmatch(written)
        if name == "memory" and memory:
            values[MEMORY], values[MEMORY_SHARE] = float(memory[1]), float(memory[2])
        elif name == "mfu":
            is_complete = written.endswith("%") or written == "N/A"
            share = number(written.rstrip("%"))
            if share is not None and is_complete:
                values[names.MFU] = share / 100
        else:
            value = number(written)
            if value is None and name in _NAMES and written != "N/A":
                return LineDefect.MALFORMED
            if value is not None:
                values[_NAMES.get(name, name)] = value
            is_complete = is_complete or name == last
    return values if is_complete and LOSS in values else LineDefect.CUT
