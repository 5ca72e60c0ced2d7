"""Trackers: the files next to the step folders that name the checkpoint to resume from."""

import re
from contextlib import suppress
from pathlib import Path

from mb_checkpoint.errors import DamagedCheckpointError
from mb_checkpoint.formats.layout import RELEASE, STATE_TRACKER, STEP_TRACKER
from mb_checkpoint.state.train_state import read_train_state

_STEP = re.compile(r"\d{1,18}")


def trackers_of(root: Path) -> tuple[Path, Path]:
    """Return the paths of both trackers, in the order in which a load follows them; they need not exist."""
    return root / STATE_TRACKER, root / STEP_TRACKER


def read_tracker(path: Path) -> int | None:
    """Return the step that a tracker names; None for released weights, which have no step.

    Raises:
        DamagedCheckpointError: It names neither.
        OSError: It cannot be read.
    """
    if path.name == STATE_TRACKER:
        return int(read_train_state(path)["step"])
    content = path.read_text(errors="replace", encoding="utf-8").strip()
    if content == RELEASE:
        return None
    if not _STEP.fullmatch(content):
        raise DamagedCheckpointError(f"holds {content[:40]!r}, neither a step nor {RELEASE!r}")
    return int(content)


def tracked_steps(root: Path) -> frozenset[int]:
    """Return the steps that the trackers name, whether or not they agree; unreadable trackers are ignored."""
    steps = set()
    for path in trackers_of(root):
        with suppress(DamagedCheckpointError, OSError):
            steps.add(read_tracker(path))
    return frozenset(step for step in steps if step is not None)
