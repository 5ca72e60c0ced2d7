"""What a save or a load is given, what it gives back, and the protocol of a checkpoint manager."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from mb_checkpoint.adapters import KeyFilter
from mb_checkpoint.retention import PruneResult
from mb_checkpoint.select import SkippedCheckpoint


class TrainStateLike(Protocol):
    """The counters of a run: `step`, `consumed_train_samples` and so on, as Python numbers."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return the counters; `step` must be among them."""
        ...

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Take the counters over."""
        ...


class ConfigLike(Protocol):
    """The whole configuration of the run."""

    def to_yaml(self, path: str, /) -> object:
        """Write it to a file."""
        ...


class StateLike(Protocol):
    """The run as a checkpoint sees it."""

    @property
    def train_state(self) -> TrainStateLike:
        """The counters."""
        ...

    @property
    def cfg(self) -> ConfigLike:
        """The configuration."""
        ...


class SchedulerLike(Protocol):
    """A learning-rate schedule."""

    def state_dict(self) -> dict[str, Any]:
        """Return where it stands."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Go on from there."""
        ...


class GroupLike(Protocol):
    """A process group; torch's fits."""

    def rank(self) -> int:
        """Return this process's place in the group."""
        ...

    def size(self) -> int:
        """Return the number of processes."""
        ...


class CallbackManagerLike(Protocol):
    """Where events go."""

    def fire(self, event: str, context: Any, /) -> None:
        """Call what is registered for the event."""
        ...


class RerunStateMachineLike(Protocol):
    """A machine that runs suspicious steps again; `mb_loop.mcore.MegatronRerunMachine` fits."""

    def state_dict(self, *, template: bool = False) -> dict[str, Any] | None:
        """Return what a checkpoint keeps of it, or None; with `template` what a load asks for. Alike on all ranks."""
        ...

    def load_state_dict(self, state: dict[str, Any] | None, /) -> None:
        """Take a loaded state over."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaveContext:
    """What to save."""

    state: StateLike
    """Counters and configuration."""
    model: Sequence[Any]
    """Model chunks of this rank: one, or one for each virtual pipeline stage."""
    optimizer: Any | None
    """Megatron optimizer; None saves the weights alone."""
    opt_param_scheduler: SchedulerLike | None
    """Learning-rate schedule."""
    num_floating_point_operations_so_far: float
    """FLOPs to store; they replace the counter of the train state."""
    train_data_iterator: Any | None = None
    """Its position is stored where its `iterable` has `save_state` and `restore_state`. Others are placed by the
    sample counters of the train state."""
    non_persistent_ckpt: bool = False
    """Make it a temporary checkpoint, of the kind that the section names."""
    adapter_key_filter: KeyFilter | None = None
    """Store only the parameters that it accepts by name; the optimizer has no others anyway."""
    pg_collection: Any | None = None
    """Process groups with `tp`, `pp`, `dp_cp` (and `ep`); None takes Megatron's own. Where modules have ranks of their
    own, `module_layouts` names each one's parallel sizes, and every rank is one of its own in `tp`."""
    module_name: str | None = None
    """Name of one module among several; refused by this version."""
    rerun_state_machine: RerunStateMachineLike | None = None
    """Its state is stored beside the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointLoadContext:
    """What to load into."""

    state: StateLike
    """Its train state is overwritten when a run is resumed."""
    model: Sequence[Any]
    """Model chunks of this rank."""
    optimizer: Any | None
    """Megatron optimizer; None leaves the stored one unread."""
    opt_param_scheduler: SchedulerLike | None
    """Learning-rate schedule."""
    strict: bool = True
    """Refuse a checkpoint whose tensors are not exactly those of the model; False leaves those alone that only one of
    both has."""
    train_data_iterator: Any | None = None
    """Put where it stood, as for saving."""
    dataloader_load: Path | None = None
    """Folder with positions, where they are not in the checkpoint."""
    adapter_key_filter: KeyFilter | None = None
    """What it accepts comes from `load`; all other weights from `pretrained_checkpoint`."""
    skip_load_to_model_and_opt: bool = False
    """Restore the train state only."""
    pg_collection: Any | None = None
    """As for saving."""
    module_name: str | None = None
    """As for saving."""
    rerun_state_machine: RerunStateMachineLike | None = None
    """Takes over what was stored of it when a run is resumed in the same layout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCheckpoint:
    """A save that is complete."""

    path: Path
    """Folder of the checkpoint."""
    step: int
    """Its step."""
    seconds: float
    """From the call to the commit; in the background the training went on meanwhile."""
    total_bytes: int = 0
    """Size of the files of all ranks; known on every rank."""
    pruned: PruneResult = field(default_factory=PruneResult)
    """What happened to older ones; known on rank 0."""

    @property
    def message(self) -> str:
        """The line that other tools look for in a log."""
        return f"successfully saved checkpoint from iteration {self.step:7d} to {self.path.parent}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledSave:
    """A save that goes on in the background; nothing names it yet."""

    root: Path
    """Folder that will receive it."""
    step: int
    """Its step."""
    seconds: float
    """How long this rank was kept from training."""
    staged_bytes: int
    """Host memory of this rank that holds the copies."""

    @property
    def message(self) -> str:
        """The line that other tools look for in a log."""
        return f"scheduled an async checkpoint save at iteration {self.step:7d} to {self.root}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedSave:
    """A save that came to nothing; earlier checkpoints and the trackers are as before."""

    root: Path
    """Folder that should have received it."""
    step: int
    """Its step."""
    message: str
    """What went wrong and on which rank, what it means, and what to do."""
    seconds: float
    """From the call to the failure."""


def describe_failure(root: Path, step: int, reason: str) -> str:
    """Return the message of a save that failed."""
    free = f"{shutil.disk_usage(root).free / 2**30:.1f} GiB free" if root.is_dir() else "no such folder"
    return (
        f"checkpoint save at step {step} to {root} failed ({free}): {reason}. Earlier checkpoints and the trackers are "
        "as before. Make room or repair the folder."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedCheckpoint:
    """A load that is complete, or the news that there was nothing to load."""

    source: Literal["resumed", "weights", "nothing"]
    """Everything of an interrupted run, the weights of another run, or nothing."""
    step: int = 0
    """Step to go on from; 0 unless resumed."""
    floating_point_operations_so_far: float = 0
    """FLOPs spent so far; 0 unless resumed."""
    path: Path | None = None
    """Folder that was read."""
    skipped: tuple[SkippedCheckpoint, ...] = ()
    """What was looked at and not taken, with reasons."""
    notes: tuple[str, ...] = ()
    """What was in the checkpoint or requested, and was not restored, with reasons."""


@runtime_checkable
class CheckpointManager(Protocol):
    """Store of checkpoints, with the members of Megatron-Bridge's protocol of the same name.

    The constructor takes the checkpoint section. The trainer passes every argument.
    """

    def save(self, ctx: CheckpointSaveContext, callback_manager: CallbackManagerLike | None = None) -> Any:
        """Save; collective over all ranks."""
        ...

    def load(self, ctx: CheckpointLoadContext) -> tuple[int, float]:
        """Load; collective over all ranks. Returns step and FLOPs, (0, 0) when nothing was loaded."""
        ...

    def finalize_async_saves(self, state: Any = None, blocking: bool = False, terminate: bool = False) -> Any:
        """Finish background saves that are done, or all of them when blocking; return what became of one, or None."""
        ...


@runtime_checkable
class CheckpointProbe(Protocol):
    """Optional member of a checkpoint manager: without it, `load` is called and returns (0, 0) where nothing is."""

    def has_checkpoint(self) -> bool:
        """Return whether `load` would find something. Called on one rank."""
        ...
