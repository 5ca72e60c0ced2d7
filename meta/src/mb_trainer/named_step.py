"""The step that a run is told to begin at: `checkpoint.ckpt_step` holds until something newer has been saved."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mb_trainer.config import CheckpointConfig
from mb_trainer.run_folder import rows


def beginning(checkpoint: CheckpointConfig) -> dict[str, object]:
    """Return the step that is named and where it lies, for the event with which a run begins; {} if none is."""
    if checkpoint.ckpt_step is None or checkpoint.finetune:
        return {}
    return {
        "ckpt_step": checkpoint.ckpt_step,
        "load": None if checkpoint.load is None else full(checkpoint.load),
    }


def full(path: str) -> str:
    """Return a path as it is named from anywhere: ways to write one place are one."""
    return os.path.abspath(path)  # noqa: PTH100  # pathlib's leaves `..` in


def hold_once(checkpoint: CheckpointConfig, *, events: Path) -> str | None:
    """Forget the step that is named if a run began there and has saved since; say so, or return None.

    The same command, typed or queued again, thus goes on instead of beginning there for ever. What was saved is then
    where `save` is, wherever the run began.

    Args:
        checkpoint: its `ckpt_step` and `load` are set.
        events: of the run folder; need not be there.
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
    """Return the newest step saved by the last run that began where it was told, if that is what is `named` now."""
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
