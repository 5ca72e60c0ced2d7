"""Checks of the trackers of a folder: damaged, naming a missing checkpoint, or not naming the newest one."""

from dataclasses import dataclass
from pathlib import Path

from mb_checkpoint.errors import DamagedCheckpointError
from mb_checkpoint.formats.layout import STATE_TRACKER, STEP_TRACKER, steps_in
from mb_checkpoint.state.train_state import read_train_state


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerNote:
    """Note on a tracker for the user."""

    path: Path
    """The tracker."""
    text: str
    damaged: bool
    """Whether the tracker is unusable; otherwise it names an older checkpoint than the newest, as after a deliberate
    rollback."""


def check_trackers(root: Path) -> list[TrackerNote]:
    """Check the trackers of a folder with `iter_*` folders and return notes. Changes nothing."""
    notes = []
    for path in (root / STATE_TRACKER, root / STEP_TRACKER):
        try:
            if not path.exists():
                continue
            step = _step_in(path)
        except DamagedCheckpointError as error:
            notes.append(TrackerNote(path=path, text=f"is damaged: {error.problem}", damaged=True))
            continue
        except OSError as error:
            text = f"is damaged: cannot be read ({error.strerror})"
            notes.append(TrackerNote(path=path, text=text, damaged=True))
            continue
        if step is not None:
            notes += _about(path, step, list(steps_in(root)))
    return notes


def _step_in(path: Path) -> int | None:
    """Return the step that a tracker names; None for released weights, which have no step."""
    if path.name == STATE_TRACKER:
        return int(read_train_state(path)["step"])
    content = path.read_text(errors="replace").strip()
    if content == "release" and (path.parent / content).is_dir():
        return None
    if not content.isdecimal():
        raise DamagedCheckpointError(f"holds {content[:40]!r}, and should hold a step")
    return int(content)


def _about(path: Path, step: int, steps: list[int]) -> list[TrackerNote]:
    if step not in steps:
        return [TrackerNote(path=path, text=f"names step {step}, whose folder is not there", damaged=True)]
    if step < steps[0]:
        return [TrackerNote(path=path, text=f"names step {step}, and {steps[0]} is there too", damaged=False)]
    return []
