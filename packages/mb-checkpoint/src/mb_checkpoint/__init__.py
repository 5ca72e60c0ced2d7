"""Crash-consistent checkpoints for PyTorch and Megatron Core.

A checkpoint becomes visible only when it is complete, and the trackers are updated last:

>>> import tempfile
>>> from pathlib import Path
>>> from mb_checkpoint import select_checkpoint, write_atomically
>>> root = Path(tempfile.mkdtemp())
>>> select_checkpoint(root) is None
True
>>> write_atomically(root / "latest_checkpointed_iteration.txt", b"100")
>>> select_checkpoint(root)  # doctest: +IGNORE_EXCEPTION_DETAIL
Traceback (most recent call last):
mb_checkpoint.errors.NoIntactCheckpointError: no complete checkpoint (iter_0000100: no such folder)
"""

from typing import TYPE_CHECKING

from mb_schema import lazy as _lazy

if TYPE_CHECKING:
    from mb_checkpoint.config import CheckpointConfig as CheckpointConfig
    from mb_checkpoint.context import CheckpointLoadContext as CheckpointLoadContext
    from mb_checkpoint.context import CheckpointManager as CheckpointManager
    from mb_checkpoint.context import CheckpointSaveContext as CheckpointSaveContext
    from mb_checkpoint.context import FailedSave as FailedSave
    from mb_checkpoint.context import LoadedCheckpoint as LoadedCheckpoint
    from mb_checkpoint.context import SavedCheckpoint as SavedCheckpoint
    from mb_checkpoint.context import ScheduledSave as ScheduledSave
    from mb_checkpoint.errors import CheckpointConfigError as CheckpointConfigError
    from mb_checkpoint.errors import CheckpointError as CheckpointError
    from mb_checkpoint.errors import CheckpointFolderError as CheckpointFolderError
    from mb_checkpoint.errors import CheckpointLayoutError as CheckpointLayoutError
    from mb_checkpoint.errors import CheckpointNotFoundError as CheckpointNotFoundError
    from mb_checkpoint.errors import CheckpointReadError as CheckpointReadError
    from mb_checkpoint.errors import CheckpointSaveError as CheckpointSaveError
    from mb_checkpoint.errors import CheckpointScheduleError as CheckpointScheduleError
    from mb_checkpoint.errors import CheckpointShapeError as CheckpointShapeError
    from mb_checkpoint.errors import DataloaderStateError as DataloaderStateError
    from mb_checkpoint.errors import IncompleteCheckpointError as IncompleteCheckpointError
    from mb_checkpoint.errors import LocalStoreError as LocalStoreError
    from mb_checkpoint.errors import ManagerStateError as ManagerStateError
    from mb_checkpoint.errors import ManifestError as ManifestError
    from mb_checkpoint.errors import TrainStateError as TrainStateError
    from mb_checkpoint.errors import UnsafeCheckpointError as UnsafeCheckpointError
    from mb_checkpoint.factory import create_checkpoint_manager as create_checkpoint_manager
    from mb_checkpoint.formats.layout import checkpoints_in as checkpoints_in
    from mb_checkpoint.formats.manifest import FileEntry as FileEntry
    from mb_checkpoint.formats.manifest import Manifest as Manifest
    from mb_checkpoint.formats.manifest import read_manifest as read_manifest
    from mb_checkpoint.formats.trust import trusted as trusted
    from mb_checkpoint.inspect.best import best_checkpoint as best_checkpoint
    from mb_checkpoint.inspect.difference import CheckpointDifference as CheckpointDifference
    from mb_checkpoint.inspect.difference import diff_checkpoints as diff_checkpoints
    from mb_checkpoint.inspect.inspection import CheckpointDescription as CheckpointDescription
    from mb_checkpoint.inspect.inspection import ListedCheckpoint as ListedCheckpoint
    from mb_checkpoint.inspect.inspection import StoredTensor as StoredTensor
    from mb_checkpoint.inspect.inspection import describe_checkpoint as describe_checkpoint
    from mb_checkpoint.inspect.inspection import list_checkpoints as list_checkpoints
    from mb_checkpoint.inspect.inspection import verify_checkpoint as verify_checkpoint
    from mb_checkpoint.load.ckpt_step import release_ckpt_step as release_ckpt_step
    from mb_checkpoint.load.completion import resumed_step as resumed_step
    from mb_checkpoint.load.completion import verify_last_checkpoint as verify_last_checkpoint
    from mb_checkpoint.load.completion import (
        verify_last_checkpoint_on_all_ranks as verify_last_checkpoint_on_all_ranks,
    )
    from mb_checkpoint.load.load import load_checkpoint as load_checkpoint
    from mb_checkpoint.load.load import load_model_weights as load_model_weights
    from mb_checkpoint.load.run_status import ResumeStatus as ResumeStatus
    from mb_checkpoint.load.run_status import resume_status as resume_status
    from mb_checkpoint.load.select import SelectedCheckpoint as SelectedCheckpoint
    from mb_checkpoint.load.select import SkippedCheckpoint as SkippedCheckpoint
    from mb_checkpoint.load.select import select_checkpoint as select_checkpoint
    from mb_checkpoint.manager import DefaultCheckpointManager as DefaultCheckpointManager
    from mb_checkpoint.run_checkpointer import RunCheckpointer as RunCheckpointer
    from mb_checkpoint.run_checkpointer import SaveOutcome as SaveOutcome
    from mb_checkpoint.save.commit import check_writable as check_writable
    from mb_checkpoint.save.commit import write_atomically as write_atomically
    from mb_checkpoint.save.retention import PruneResult as PruneResult
    from mb_checkpoint.save.retention import prune as prune
    from mb_checkpoint.save.save import save_checkpoint as save_checkpoint
    from mb_checkpoint.save.save import save_model_weights as save_model_weights
    from mb_checkpoint.state.adapters import (
        apply_peft_adapter_filter_to_state_dict as apply_peft_adapter_filter_to_state_dict,
    )
    from mb_checkpoint.state.callback_states import stateful_callbacks as stateful_callbacks
    from mb_checkpoint.state.dataloader import read_dataloader_state as read_dataloader_state
    from mb_checkpoint.state.position_copies import PositionCopies as PositionCopies
    from mb_checkpoint.state.position_copies import position_callbacks as position_callbacks
    from mb_checkpoint.state.train_state import read_train_state as read_train_state
    from mb_checkpoint.storage.checkpoints import upload_checkpoint as upload_checkpoint
    from mb_checkpoint.storage.fetch import fetch_checkpoint as fetch_checkpoint
    from mb_checkpoint.storage.storage import Storage as Storage
    from mb_checkpoint.torch.checkpointer import TorchCheckpointer as TorchCheckpointer

_HOMES = {
    "stateful_callbacks": "state.callback_states",
    "best_checkpoint": "inspect.best",
    "CheckpointConfig": "config",
    "CheckpointConfigError": "errors",
    "CheckpointDescription": "inspect.inspection",
    "CheckpointDifference": "inspect.difference",
    "CheckpointError": "errors",
    "CheckpointFolderError": "errors",
    "CheckpointLayoutError": "errors",
    "CheckpointLoadContext": "context",
    "CheckpointManager": "context",
    "CheckpointNotFoundError": "errors",
    "CheckpointReadError": "errors",
    "CheckpointSaveContext": "context",
    "CheckpointSaveError": "errors",
    "CheckpointScheduleError": "errors",
    "CheckpointShapeError": "errors",
    "DataloaderStateError": "errors",
    "DefaultCheckpointManager": "manager",
    "FailedSave": "context",
    "FileEntry": "formats.manifest",
    "IncompleteCheckpointError": "errors",
    "ListedCheckpoint": "inspect.inspection",
    "LoadedCheckpoint": "context",
    "LocalStoreError": "errors",
    "ManagerStateError": "errors",
    "Manifest": "formats.manifest",
    "ManifestError": "errors",
    "PositionCopies": "state.position_copies",
    "PruneResult": "save.retention",
    "ResumeStatus": "load.run_status",
    "RunCheckpointer": "run_checkpointer",
    "SaveOutcome": "run_checkpointer",
    "SavedCheckpoint": "context",
    "ScheduledSave": "context",
    "SelectedCheckpoint": "load.select",
    "SkippedCheckpoint": "load.select",
    "Storage": "storage.storage",
    "StoredTensor": "inspect.inspection",
    "TorchCheckpointer": "torch.checkpointer",
    "TrainStateError": "errors",
    "UnsafeCheckpointError": "errors",
    "apply_peft_adapter_filter_to_state_dict": "state.adapters",
    "check_writable": "save.commit",
    "checkpoints_in": "formats.layout",
    "create_checkpoint_manager": "factory",
    "describe_checkpoint": "inspect.inspection",
    "diff_checkpoints": "inspect.difference",
    "fetch_checkpoint": "storage.fetch",
    "list_checkpoints": "inspect.inspection",
    "load_checkpoint": "load.load",
    "load_model_weights": "load.load",
    "position_callbacks": "state.position_copies",
    "prune": "save.retention",
    "read_dataloader_state": "state.dataloader",
    "read_manifest": "formats.manifest",
    "read_train_state": "state.train_state",
    "release_ckpt_step": "load.ckpt_step",
    "resume_status": "load.run_status",
    "resumed_step": "load.completion",
    "save_checkpoint": "save.save",
    "save_model_weights": "save.save",
    "select_checkpoint": "load.select",
    "trusted": "formats.trust",
    "upload_checkpoint": "storage.checkpoints",
    "verify_checkpoint": "inspect.inspection",
    "verify_last_checkpoint": "load.completion",
    "verify_last_checkpoint_on_all_ranks": "load.completion",
    "write_atomically": "save.commit",
}


def __getattr__(name: str) -> object:
    return _lazy.resolve(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return _lazy.public_names(globals(), _HOMES)
