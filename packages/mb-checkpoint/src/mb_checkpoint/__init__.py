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
    from mb_checkpoint.adapters import (
        apply_peft_adapter_filter_to_state_dict as apply_peft_adapter_filter_to_state_dict,
    )
    from mb_checkpoint.ckpt_step import release_ckpt_step as release_ckpt_step
    from mb_checkpoint.commit import check_writable as check_writable
    from mb_checkpoint.commit import write_atomically as write_atomically
    from mb_checkpoint.completion import resumed_step as resumed_step
    from mb_checkpoint.completion import verify_last_checkpoint as verify_last_checkpoint
    from mb_checkpoint.completion import (
        verify_last_checkpoint_on_all_ranks as verify_last_checkpoint_on_all_ranks,
    )
    from mb_checkpoint.config import CheckpointConfig as CheckpointConfig
    from mb_checkpoint.context import CheckpointLoadContext as CheckpointLoadContext
    from mb_checkpoint.context import CheckpointManager as CheckpointManager
    from mb_checkpoint.context import CheckpointSaveContext as CheckpointSaveContext
    from mb_checkpoint.context import FailedSave as FailedSave
    from mb_checkpoint.context import LoadedCheckpoint as LoadedCheckpoint
    from mb_checkpoint.context import SavedCheckpoint as SavedCheckpoint
    from mb_checkpoint.context import ScheduledSave as ScheduledSave
    from mb_checkpoint.dataloader import read_dataloader_state as read_dataloader_state
    from mb_checkpoint.difference import CheckpointDifference as CheckpointDifference
    from mb_checkpoint.difference import diff_checkpoints as diff_checkpoints
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
    from mb_checkpoint.errors import StorageError as StorageError
    from mb_checkpoint.errors import TrainStateError as TrainStateError
    from mb_checkpoint.errors import UnsafeCheckpointError as UnsafeCheckpointError
    from mb_checkpoint.factory import create_checkpoint_manager as create_checkpoint_manager
    from mb_checkpoint.inspection import CheckpointDescription as CheckpointDescription
    from mb_checkpoint.inspection import ListedCheckpoint as ListedCheckpoint
    from mb_checkpoint.inspection import StoredTensor as StoredTensor
    from mb_checkpoint.inspection import describe_checkpoint as describe_checkpoint
    from mb_checkpoint.inspection import list_checkpoints as list_checkpoints
    from mb_checkpoint.inspection import verify_checkpoint as verify_checkpoint
    from mb_checkpoint.layout import checkpoints_in as checkpoints_in
    from mb_checkpoint.load import load_checkpoint as load_checkpoint
    from mb_checkpoint.load import load_model_weights as load_model_weights
    from mb_checkpoint.manager import DefaultCheckpointManager as DefaultCheckpointManager
    from mb_checkpoint.manifest import FileEntry as FileEntry
    from mb_checkpoint.manifest import Manifest as Manifest
    from mb_checkpoint.manifest import read_manifest as read_manifest
    from mb_checkpoint.position_copies import PositionCopies as PositionCopies
    from mb_checkpoint.position_copies import position_callbacks as position_callbacks
    from mb_checkpoint.retention import PruneResult as PruneResult
    from mb_checkpoint.retention import prune as prune
    from mb_checkpoint.run_checkpointer import RunCheckpointer as RunCheckpointer
    from mb_checkpoint.run_checkpointer import SaveOutcome as SaveOutcome
    from mb_checkpoint.run_status import ResumeStatus as ResumeStatus
    from mb_checkpoint.run_status import resume_status as resume_status
    from mb_checkpoint.save import save_checkpoint as save_checkpoint
    from mb_checkpoint.save import save_model_weights as save_model_weights
    from mb_checkpoint.select import SelectedCheckpoint as SelectedCheckpoint
    from mb_checkpoint.select import SkippedCheckpoint as SkippedCheckpoint
    from mb_checkpoint.select import select_checkpoint as select_checkpoint
    from mb_checkpoint.storage import Storage as Storage
    from mb_checkpoint.storage import open_storage as open_storage
    from mb_checkpoint.storage_checkpoints import upload_checkpoint as upload_checkpoint
    from mb_checkpoint.storage_fetch import fetch_checkpoint as fetch_checkpoint
    from mb_checkpoint.torch_checkpointer import TorchCheckpointer as TorchCheckpointer
    from mb_checkpoint.train_state import read_train_state as read_train_state
    from mb_checkpoint.trust import trusted as trusted

_HOMES = {
    "CheckpointConfig": "config",
    "CheckpointConfigError": "errors",
    "CheckpointDescription": "inspection",
    "CheckpointDifference": "difference",
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
    "FileEntry": "manifest",
    "IncompleteCheckpointError": "errors",
    "ListedCheckpoint": "inspection",
    "LoadedCheckpoint": "context",
    "LocalStoreError": "errors",
    "ManagerStateError": "errors",
    "Manifest": "manifest",
    "ManifestError": "errors",
    "PositionCopies": "position_copies",
    "PruneResult": "retention",
    "ResumeStatus": "run_status",
    "RunCheckpointer": "run_checkpointer",
    "SaveOutcome": "run_checkpointer",
    "SavedCheckpoint": "context",
    "ScheduledSave": "context",
    "SelectedCheckpoint": "select",
    "SkippedCheckpoint": "select",
    "Storage": "storage",
    "StorageError": "errors",
    "StoredTensor": "inspection",
    "TorchCheckpointer": "torch_checkpointer",
    "TrainStateError": "errors",
    "UnsafeCheckpointError": "errors",
    "apply_peft_adapter_filter_to_state_dict": "adapters",
    "check_writable": "commit",
    "checkpoints_in": "layout",
    "create_checkpoint_manager": "factory",
    "describe_checkpoint": "inspection",
    "diff_checkpoints": "difference",
    "fetch_checkpoint": "storage_fetch",
    "list_checkpoints": "inspection",
    "load_checkpoint": "load",
    "load_model_weights": "load",
    "open_storage": "storage",
    "position_callbacks": "position_copies",
    "prune": "retention",
    "read_dataloader_state": "dataloader",
    "read_manifest": "manifest",
    "read_train_state": "train_state",
    "release_ckpt_step": "ckpt_step",
    "resume_status": "run_status",
    "resumed_step": "completion",
    "save_checkpoint": "save",
    "save_model_weights": "save",
    "select_checkpoint": "select",
    "trusted": "trust",
    "upload_checkpoint": "storage_checkpoints",
    "verify_checkpoint": "inspection",
    "verify_last_checkpoint": "completion",
    "verify_last_checkpoint_on_all_ranks": "completion",
    "write_atomically": "commit",
}


def __getattr__(name: str) -> object:
    return _lazy.resolve(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return _lazy.public_names(globals(), _HOMES)
