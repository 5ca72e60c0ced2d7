"""Arguments and results of saving and loading, and the protocol of a checkpoint manager."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from mb_checkpoint.load.select import SkippedCheckpoint
from mb_checkpoint.state.adapters import KeyFilter


class TrainStateLike(Protocol):
    """Counters of a run: `step`, `consumed_train_samples` and so on, as Python numbers."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return the counters, which include `step`."""
        ...

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Replace the counters."""
        ...


class RunCountersLike(TrainStateLike, Protocol):
    """Counters of a run; `mb_loop.TrainState` matches."""

    @property
    def step(self) -> int:
        """Number of finished steps."""
        ...

    @property
    def floating_point_operations_so_far(self) -> float:
        """Operations of all steps so far."""
        ...


class ConfigLike(Protocol):
    """Complete configuration of the run."""

    def to_yaml(self, path: str, /) -> object:
        """Write the configuration to a file."""
        ...


class StateLike(Protocol):
    """State of the run outside model and optimizer."""

    @property
    def train_state(self) -> TrainStateLike:
        """The counters."""
        ...

    @property
    def cfg(self) -> ConfigLike:
        """The configuration."""
        ...


class SchedulerLike(Protocol):
    """Learning-rate scheduler."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the scheduler."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Restore the state of the scheduler."""
        ...


@runtime_checkable
class StatefulLike(Protocol):
    """Callback with a state that a resumed run needs; `mb_loop.EarlyStopping` matches."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state: values of plain types, identical on all ranks."""
        ...

    def load_state_dict(self, state: Mapping[str, Any], /) -> object:
        """Restore the state."""
        ...


class GroupLike(Protocol):
    """Process group; torch's process groups match."""

    def rank(self) -> int:
        """Return the rank of this process in the group."""
        ...

    def size(self) -> int:
        """Return the number of processes."""
        ...


class CallbackManagerLike(Protocol):
    """Receiver of events."""

    def fire(self, event: str, context: Any, /) -> None:
        """Call the functions that are registered for the event."""
        ...


class RerunStateMachineLike(Protocol):
    """State machine that reruns suspicious steps; `mb_loop.mcore.MegatronRerunMachine` matches."""

    def state_dict(self, *, template: bool = False) -> dict[str, Any] | None:
        """Return the state to store, or None; with `template` the state to request on load. Identical on all ranks."""
        ...

    def load_state_dict(self, state: dict[str, Any] | None, /) -> None:
        """Restore a loaded state."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaveContext:
    """State to save."""

    state: StateLike
    """Counters and configuration."""
    model: Sequence[Any]
    """Model chunks of this rank: one, or one for each virtual pipeline stage."""
    optimizer: Any | None
    """Megatron optimizer, or one of torch, such as AdamW; None saves only the weights."""
    opt_param_scheduler: SchedulerLike | None
    """Learning-rate scheduler."""
    num_floating_point_operations_so_far: float
    """FLOPs to store; they replace the counter of the train state."""
    train_data_iterator: Any | None = None
    """Its position is stored if its `iterable` has `save_state` and `restore_state`. Other iterators are positioned by
    the sample counters of the train state."""
    non_persistent_ckpt: bool = False
    """Save a non-persistent checkpoint, of the type that the section names."""
    adapter_key_filter: KeyFilter | None = None
    """Store only the parameters whose names it accepts; the optimizer has no others in any case."""
    pg_collection: Any | None = None
    """Process groups with `tp`, `pp`, `dp_cp` (and `ep`); None uses Megatron's own. If modules have separate ranks,
    `module_layouts` maps each module to its parallel sizes, and the `tp` group contains every rank."""
    module_name: str | None = None
    """Name of one module among several; not supported by this version."""
    rerun_state_machine: RerunStateMachineLike | None = None
    """State machine whose state is stored as well."""
    callbacks: Mapping[str, StatefulLike] = field(default_factory=dict)
    """Callbacks by name whose state is stored as well, as rank 0 has it."""
    best_metric: float | None = None
    """Value of the section's `best_metric` in an evaluation after this step, on rank 0; None: there was none."""
    megatron_arguments: Mapping[str, Any] | None = None
    """Arguments of Megatron-LM that describe this run, by the names of `megatron.training`: stored so that Megatron-LM
    can resume from the checkpoint. None stores none, and Megatron-LM then starts the data from the beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointLoadContext:
    """State to load into."""

    state: StateLike
    """Its train state is overwritten when a run is resumed."""
    model: Sequence[Any]
    """Model chunks of this rank."""
    optimizer: Any | None
    """Megatron optimizer; None leaves the stored one unread."""
    opt_param_scheduler: SchedulerLike | None
    """Learning-rate schedule."""
    strict: bool = True
    """Reject a checkpoint whose tensors are not exactly those of the model; False leaves the others unchanged."""
    train_data_iterator: Any | None = None
    """Its position is restored, as for saving."""
    dataloader_load: Path | None = None
    """Folder with positions, if they are not in the checkpoint."""
    adapter_key_filter: KeyFilter | None = None
    """Parameters that it accepts come from `load`; all others from `pretrained_checkpoint`."""
    skip_load_to_model_and_opt: bool = False
    """Restore only the train state."""
    pg_collection: Any | None = None
    """As for saving."""
    module_name: str | None = None
    """As for saving."""
    rerun_state_machine: RerunStateMachineLike | None = None
    """State machine whose state is restored if a run is resumed in the same parallel layout."""
    callbacks: Mapping[str, StatefulLike] = field(default_factory=dict)
    """Callbacks by name whose state is restored if a run is resumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCheckpoint:
    """Completed save."""

    path: Path
    """Folder of the checkpoint."""
    step: int
    """Its step."""
    seconds: float
    """Time from the call to the commit; in a background save, training continues during most of it."""
    total_bytes: int = 0
    """Size of the files of all ranks; available on every rank."""

    @property
    def message(self) -> str:
        """Log line that other tools search for."""
        return f"successfully saved checkpoint from iteration {self.step:7d} to {self.path.parent}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledSave:
    """Background save in flight; no tracker names it yet."""

    root: Path
    """Folder that will receive the checkpoint."""
    step: int
    """Its step."""
    seconds: float
    """Time for which training was blocked on this rank."""
    staged_bytes: int
    """Size in bytes of the host memory of this rank that holds the copies."""

    @property
    def message(self) -> str:
        """Log line that other tools search for."""
        return f"scheduled an async checkpoint save at iteration {self.step:7d} to {self.root}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedSave:
    """Failed save; earlier checkpoints are unchanged, and no tracker names an incomplete one."""

    root: Path
    """Folder that should have received the checkpoint."""
    step: int
    """Its step."""
    message: str
    """Problem with the failed ranks, consequence, and fix."""
    seconds: float
    """Time from the call to the failure."""


def describe_failure(root: Path, step: int, reason: str) -> str:
    """Return the message of a failed save."""
    free = f"{shutil.disk_usage(root).free / 2**30:.1f} GiB free" if root.is_dir() else "no such folder"
    return (
        f"checkpoint save at step {step} to {root} failed ({free}): {reason}. Earlier checkpoints are unchanged, and "
        "no tracker names an incomplete one. Free disk space, raise the quota or the limit on the size of a file "
        "(ulimit -f), or repair the folder."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedCheckpoint:
    """Result of a load, also if there was nothing to load."""

    source: Literal["resumed", "weights", "nothing"]
    """State that was loaded: all of an interrupted run, the weights of another run, or nothing."""
    step: int = 0
    """Step to resume at; 0 unless resumed."""
    floating_point_operations_so_far: float = 0
    """FLOPs spent so far; 0 unless resumed."""
    path: Path | None = None
    """Folder that was read."""
    skipped: tuple[SkippedCheckpoint, ...] = ()
    """Checkpoints that were examined and not selected, with reasons."""
    notes: tuple[str, ...] = ()
    """State that was stored or requested, and was not restored, with reasons."""
    megatron_arguments: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of Megatron-LM in a resumed checkpoint; empty if it holds none."""
    from_local_disk: bool = False
    """Whether the folder is that of local checkpoints (`non_persistent_local_ckpt_dir`), on the disk of this node."""

    non_persistent: bool = False
    """Whether the run resumes from a non-persistent checkpoint, global or local, which newer ones replace."""

    @property
    def from_persistent_storage(self) -> bool:
        """Whether a checkpoint was read from shared storage, whose load time is representative of later loads."""
        if self.path is None:  # nothing was loaded, or a custom manager loaded it and reports only the step
            return self.step > 0
        return not self.from_local_disk


@runtime_checkable
class CheckpointManager(Protocol):
    """Manager of checkpoints, with the members of Megatron-Bridge's protocol of the same name.

    The constructor takes the checkpoint section. The trainer passes every argument.
    """

    def save(self, ctx: CheckpointSaveContext, callback_manager: CallbackManagerLike | None = None) -> Any:
        """Save; collective over all ranks."""
        ...

    def load(self, ctx: CheckpointLoadContext) -> tuple[int, float]:
        """Load; collective over all ranks. Returns step and FLOPs, (0, 0) if nothing was loaded."""
        ...

    def finalize_async_saves(self, state: Any = None, blocking: bool = False, terminate: bool = False) -> Any:
        """Finalize completed background saves, or with `blocking` all of them; return the result of one, or None."""
        ...


@runtime_checkable
class CheckpointProbe(Protocol):
    """Optional member of a checkpoint manager: without it, `load` is called and returns (0, 0) if there is nothing."""

    def has_checkpoint(self) -> bool:
        """Return whether `load` would find a checkpoint. Called on one rank."""
        ...
