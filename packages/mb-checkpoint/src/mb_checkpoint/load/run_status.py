"""Status of a run before it starts: fresh, resumable, complete, or rejected. Reads folder names; standard library only.

Contents are not read, because that needs torch: `completion.verify_last_checkpoint` does it for a complete run, and the
load for all others.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from mb_checkpoint.config import CheckpointConfig
from mb_checkpoint.formats.layout import (
    has_local_checkpoint,
    non_persistent_roots,
    step_of,
    why_not_a_checkpoint,
)
from mb_checkpoint.load.ckpt_step import start_fields
from mb_checkpoint.load.directories import resumable_directories


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeStatus:
    """Status of a run, as its checkpoint section and the folders determine it."""

    state: Literal["fresh", "resumable", "complete", "rejected"]
    """"fresh": no checkpoint to resume from (weights may be loaded); "resumable": there is one; "complete": a
    persistent one seems to have all steps; "rejected": the run must not start, see `reason`."""
    step: int | None = None
    """Highest step that a load could select, by folder names; None without any, and for checkpoints on the disks of the
    nodes, of which only all ranks together know the step."""
    reason: str | None = None
    """Reason of the rejection, and the fix; None unless rejected."""
    start_fields: Mapping[str, object] = field(default_factory=dict)
    """Step and folder that the run starts from, for its first event (see `release_ckpt_step`)."""

    @property
    def resumes(self) -> bool:
        """Whether there is a checkpoint to resume from."""
        return self.state in ("resumable", "complete")


def resume_status(
    section: CheckpointConfig, *, train_iters: int, evaluate_only: bool = False
) -> ResumeStatus:
    """Return whether a run is fresh, resumes, is complete, or is rejected. Not collective.

    Rejected are a start from the beginning in a folder with checkpoints, and an evaluation of random weights. A folder
    that cannot be read counts as empty: the load reports the reason.

    Args:
        section: the checkpoint section. Its rules should hold; `release_ckpt_step` should have been called.
        train_iters: number of steps of the complete run.
        evaluate_only: the run only evaluates. It is never complete, and it needs weights.
    """
    step = _newest_step(section)
    saved = _newest_step(section, persistent=True)
    reason = _why_random_weights(section) if evaluate_only else _why_mixed(section)
    state: Literal["fresh", "resumable", "complete", "rejected"] = "fresh"
    if reason is not None:
        state = "rejected"
    elif saved is not None and saved >= train_iters and not evaluate_only:
        state = "complete"
    elif step is not None or _has_checkpoint(section):
        state = "resumable"
    return ResumeStatus(state=state, step=step, reason=reason, start_fields=start_fields(section))


def complete_message(
    section: CheckpointConfig, last: Path, *, run: Path, train_iters: int
) -> tuple[str, str]:
    """Return the message that a run has all its steps, and how to train longer.

    Args:
        section: the checkpoint section.
        last: persistent checkpoint of the last step, in the folder of the run or in another one.
        run: folder of the run.
        train_iters: number of steps of the complete run.
    """
    if section.save is not None and last.parent == Path(section.save):
        return (
            f"{run}: the run is complete ({train_iters} steps); nothing to do.",
            "To train longer, set train.train_iters=N and pass --resume-with-changes, or start in another folder with "
            "--out.",
        )
    return (
        f"{last}: has all {train_iters} steps of this run; nothing to do, and {run} stays empty.",
        "To train longer, set train.train_iters=N.",
    )


def _newest_step(section: CheckpointConfig, *, persistent: bool = False) -> int | None:
    """Return the highest step that a load could select, or `ckpt_step`; None if there is none.

    `persistent`: without those of non-persistent checkpoints.
    """
    if section.load is None or section.finetune:
        return None
    newest_first = resumable_directories(section, persistent=persistent)
    is_one_checkpoint = newest_first == [Path(section.load)]
    if section.ckpt_step is not None and not is_one_checkpoint:
        return section.ckpt_step
    return step_of(newest_first[0]) if newest_first else None


def _has_checkpoint(section: CheckpointConfig) -> bool:
    """Return whether there is a checkpoint to resume from, on the shared file system or on the disk of this node.

    The one on this node may be incomplete; only all ranks together can determine that.
    """
    if section.finetune:
        return False
    persistent = [] if section.load is None else [Path(section.load)]
    if any(why_not_a_checkpoint(root) is None for root in (*persistent, *non_persistent_roots(section))):
        return True
    local = section.non_persistent_local_ckpt_dir
    if section.non_persistent_ckpt_type != "local" or local is None:
        return False
    return has_local_checkpoint(Path(local))


def _why_mixed(section: CheckpointConfig) -> str | None:
    """Return why a start from the beginning would mix two runs; None if it would not."""
    if section.load is not None or not section.save or why_not_a_checkpoint(Path(section.save)) is not None:
        return None
    return (
        f"checkpoint.load: is null, so the run would start from the beginning, and {section.save} has checkpoints, "
        "with which its own would be mixed. Omit checkpoint.load to resume from them, or choose another folder with "
        "--out."
    )


def _why_random_weights(section: CheckpointConfig) -> str | None:
    """Return why an evaluation would use random weights; None if there may be others.

    A custom manager, and non-persistent checkpoints on the disks of the nodes or in a separate folder are not checked.
    """
    elsewhere = (
        section.pretrained_checkpoint,
        section.custom_manager_class,
        section.non_persistent_global_ckpt_dir,
    )
    if section.non_persistent_ckpt_type == "local" or any(elsewhere):
        return None
    missing = "is null" if section.load is None else why_not_a_checkpoint(Path(section.load))
    if missing is None:
        return None
    return (
        f"validation.skip_train: {section.load or 'checkpoint.load'} {missing}, and the weights would be random. Name "
        "a run's folder with --out, or weights with checkpoint.pretrained_checkpoint."
    )
