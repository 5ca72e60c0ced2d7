"""Step and folder to start from, which apply until the run has saved a checkpoint. Standard library only.

`ckpt_step`, and a `load` other than `save`, name the checkpoint that a run starts from. The same command, typed or
queued again, would start from there every time, and make all steps again.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mb_checkpoint.config import CheckpointConfig


def start_fields(section: CheckpointConfig) -> dict[str, object]:
    """Return the configured step and its folder, for the first event of a run; {} if it starts from its own newest.

    `release_ckpt_step` reads them from the events of the run.
    """
    load = None if section.load is None else _absolute(section.load)
    elsewhere = load is not None and section.save is not None and load != _absolute(section.save)
    if section.finetune or (section.ckpt_step is None and not elsewhere):
        return {}
    return {"ckpt_step": section.ckpt_step, "load": load}


def release_ckpt_step(section: CheckpointConfig, *, events: Iterable[Mapping[str, Any]]) -> str | None:
    """Clear the configured step and folder if a run started from them and has saved since; return the message, or None.

    The same command, typed or queued again, thus resumes instead of starting from there every time. Newer checkpoints
    are in `save`, whatever folder the run started from: `load` is set to it.

    Args:
        section: its `ckpt_step` and `load` are set. Call this before the rules are checked: the step may be deleted.
        events: events of the run, oldest first: mappings with "event" ("start", "resume", "save", ...) and "step"; the
            first one of each process has the fields of `start_fields`.
    """
    released = released_start(section, events=events)
    if released is None:
        return None
    section.ckpt_step, section.load = None, released.load
    return released.message


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedStart:
    """Folder from which a run resumes in place of the configured step and folder."""

    load: str | None
    message: str


def released_start(section: CheckpointConfig, *, events: Iterable[Mapping[str, Any]]) -> ReleasedStart | None:
    """Return what replaces the configured step and folder, or None; arguments as `release_ckpt_step`."""
    start = start_fields(section)
    newer = _saved_since(start, events) if start else None
    if newer is None:
        return None
    step, load = section.ckpt_step, section.load
    own = section.save or section.load
    if step is None:
        message = (
            f"checkpoint.load={load}: this run started from there and has saved step {newer} since, so it resumes from "
            f"its newest checkpoint. To start from {load} again, use another folder: --out=NEW."
        )
        return ReleasedStart(load=own, message=message)
    message = (
        f"checkpoint.ckpt_step={step}: this run started from that step and has saved step {newer} since, so it resumes "
        f"from its newest checkpoint. To start from step {step} again, use another folder: --out=NEW "
        f"checkpoint.load={load}."
    )
    return ReleasedStart(load=own, message=message)


def _saved_since(start: Mapping[str, object], events: Iterable[Mapping[str, Any]]) -> int | None:
    """Return the newest step saved by the last process that started at a configured step, if that is `start`."""
    last_start: Mapping[str, object] = {}
    newest: int | None = None
    for event in events:
        kind = event.get("event")
        if kind in ("start", "resume") and "ckpt_step" in event:
            load = event.get("load")
            last_start = {
                "ckpt_step": event["ckpt_step"],
                "load": _absolute(load) if isinstance(load, str) else None,
            }
            newest = None
        elif kind == "save" and last_start == start:
            step = event.get("step")  # None or of another type in a damaged file
            if isinstance(step, int) and step > int(str(start["ckpt_step"] or 0)):
                newest = step
    return newest


def _absolute(path: str) -> str:
    """Return the absolute path, so that different spellings of one path are equal."""
    return os.path.abspath(path)  # noqa: PTH100  # pathlib keeps `..`
