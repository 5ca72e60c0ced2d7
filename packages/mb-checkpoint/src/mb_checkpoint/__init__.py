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
    from mb_checkpoint.context import LoadedCheckpoint as LoadedCheckpoint
    from mb_checkpoint.context import SavedCheckpoint as SavedCheckpoint
    from mb_checkpoint.errors import CheckpointError as CheckpointError
    from mb_checkpoint.errors import CheckpointNotFoundError as CheckpointNotFoundError
    from mb_checkpoint.errors import UnsafeCheckpointError as UnsafeCheckpointError
    from mb_checkpoint.factory import create_checkpoint_manager as create_checkpoint_manager
    from mb_checkpoint.formats.trust import trusted as trusted
    from mb_checkpoint.inspect.best import best_checkpoint as best_checkpoint
    from mb_checkpoint.inspect.difference import diff_checkpoints as diff_checkpoints
    from mb_checkpoint.inspect.inspection import describe_checkpoint as describe_checkpoint
    from mb_checkpoint.inspect.inspection import list_checkpoints as list_checkpoints
    from mb_checkpoint.inspect.inspection import verify_checkpoint as verify_checkpoint
    from mb_checkpoint.load.ckpt_step import release_ckpt_step as release_ckpt_step
    from mb_checkpoint.load.completion import verify_last_checkpoint as verify_last_checkpoint
    from mb_checkpoint.load.load import load_checkpoint as load_checkpoint
    from mb_checkpoint.load.load import load_model_weights as load_model_weights
    from mb_checkpoint.load.run_status import resume_status as resume_status
    from mb_checkpoint.load.select import select_checkpoint as select_checkpoint
    from mb_checkpoint.manager import DefaultCheckpointManager as DefaultCheckpointManager
    from mb_checkpoint.rules import RULES as RULES
    from mb_checkpoint.run_checkpointer import RunCheckpointer as RunCheckpointer
    from mb_checkpoint.save.commit import check_writable as check_writable
    from mb_checkpoint.save.commit import write_atomically as write_atomically
    from mb_checkpoint.save.retention import prune as prune
    from mb_checkpoint.save.save import save_checkpoint as save_checkpoint
    from mb_checkpoint.save.save import save_model_weights as save_model_weights
    from mb_checkpoint.state.callback_states import stateful_callbacks as stateful_callbacks
    from mb_checkpoint.state.train_state import read_train_state as read_train_state
    from mb_checkpoint.storage.checkpoints import upload_checkpoint as upload_checkpoint
    from mb_checkpoint.storage.fetch import fetch_checkpoint as fetch_checkpoint
    from mb_checkpoint.storage.storage import Storage as Storage
    from mb_checkpoint.torch.checkpointer import TorchCheckpointer as TorchCheckpointer

_HOMES, __getattr__, __dir__ = _lazy.attach(__name__, __file__)
