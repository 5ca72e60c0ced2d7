"""Samples for tests: rates of an interval, and files of small runs."""

import json

from mb_metrics import ThroughputRates

BEGIN = 1_700_000_000.0


def rates(step_seconds=0.25, tflops_per_device=None, mfu=None, tokens_per_second=None):
    return ThroughputRates(
        step_seconds=step_seconds,
        tokens_per_second=tokens_per_second,
        tflops_per_device=tflops_per_device,
        tflops=tflops_per_device,
        mfu=mfu,
        peak_tflops=989.4,
    )


def row(step, at, **values):
    named = {name if "/" in name else name.replace("_", " "): value for name, value in values.items()}
    return {"step": step, "time": BEGIN + at, **named}


def event(kind, at, **fields):
    return {"event": kind, "time": BEGIN + at, **fields}


def write_run(folder, rows, events=(), **files):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    if events:
        (folder / "events.jsonl").write_text("".join(json.dumps(one) + "\n" for one in events))
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def steady(first, last, at, *, seconds=1.0, **values):
    """Return rows of steps that take a second each, the first one completed at `at`."""
    return [
        row(step, at + seconds * (step - first), **({"lm_loss": 2.0} | values))
        for step in range(first, last + 1)
    ]
