"""Handling of `checkpoint.ckpt_step`, the step to start from, which applies until a newer checkpoint is saved."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mb_trainer.config import CheckpointConfig
from mb_trainer.run_folder import rows


def beginning(checkpoint: CheckpointConfig) -> dict[str, object]:
    """Return the configured step and its path, for the first event of a run; {} if none is set."""
    if checkpoint.ckpt_step is None or checkpoint.finetune:
        return {}
    return {
        "ckpt_step": checkpoint.ckpt_step,
        "load": None if checkpoint.load is None else full(checkpoint.load),
    }


def full(path: str) -> str:
    """Return the absolute path, so that different spellings of one path are equal."""
    return os.path.abspath(path)  # noqa: PTH100  # pathlib keeps `..`


def hold_once(checkpoint: CheckpointConfig, *, events: Path) -> str | None:
    """Clear the configured step if a run started there and has saved since; return the message, or None.

    The same command, typed or queued again, thus resumes instead of starting at that step every time. Newer checkpoints
    are in `save`, whatever folder the run started from.

    Args:
        checkpoint: its `ckpt_step` and `load` are set.
        events: events file of the run folder; may be missing.
    """
    named = beginning(checkpoint)
    newer = saved_since(named, rows(events)) if named else None
    if newer is None:
        return None
    step, began = checkpoint.ckpt_step, checkpoint.load
    checkpoint.ckpt_step = None
    checkpoint.load = checkpoint.save or checkpoint.load
    return (
        f"checkpoint.ckpt_step={step}: this run began there and has saved step {newer} since, so it goes on from its "
        f"newest checkpoint. To begin at step {step} once more, do it in another folder, with --out=NEW "
        f"checkpoint.load={began}."
    )


def saved_since(named: Mapping[str, object], events: Iterator[Mapping[str, Any]]) -> int | None:
    """Return the newest step saved by the last run that started at a configured step, if that step equals `named`."""
    began: Mapping[str, object] = {}
    newest: int | None = None
    for row in events:
        if row.get("event") in ("start", "resume") and "ckpt_step" in row:
            load = row.get("load")
            began = {"ckpt_step": row["ckpt_step"], "load": full(load) if isinstance(load, str) else None}
            newest = None
        elif (
            row.get("event") == "save" and began == named and int(row["step"]) > int(str(named["ckpt_step"]))
        ):
            newest = int(row["step"])
    return newest
