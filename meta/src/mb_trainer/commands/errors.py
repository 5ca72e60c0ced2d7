"""Errors that a user can cause become one message on stderr and an exit code; all others keep their traceback."""

import sys
from collections.abc import Callable

from mb_checkpoint.errors import (
    CheckpointConfigError,
    CheckpointFolderError,
    CheckpointLayoutError,
    CheckpointNotFoundError,
    CheckpointSaveError,
    CheckpointShapeError,
    IncompleteCheckpointError,
    TrainStateError,
)
from mb_config import ConfigError, ConfigReadError
from mb_data.errors import (
    BadDocumentError,
    CorpusError,
    DataPathError,
    IndexedFormatError,
    NotEnoughSamplesError,
    TokenizerError,
    WorkerError,
)
from mb_models.rules import ModelConfigError
from mb_trainer.processes import WorldError
from mb_trainer.run_folder import NoCheckpointError, RunFolderError

REFUSED = 1
UNREADABLE = 2
INTERRUPTED = 130

CANNOT_BE_READ = (
    BadDocumentError,
    ConfigReadError,
    CorpusError,
    DataPathError,
    IndexedFormatError,
    NoCheckpointError,
    TokenizerError,
    WorldError,
)
"""What was asked for could not be read."""

CANNOT_BE_DONE = (
    CheckpointConfigError,
    CheckpointFolderError,
    CheckpointLayoutError,
    CheckpointNotFoundError,
    CheckpointSaveError,
    CheckpointShapeError,
    ConfigError,
    IncompleteCheckpointError,
    ModelConfigError,
    NotEnoughSamplesError,
    RunFolderError,
    TrainStateError,
    WorkerError,
)
"""It was read, and cannot or must not be done."""


def reported(work: Callable[[], int]) -> int:
    """Do the work and return its exit code, or say what a user did wrong and return the code of that."""
    try:
        return work()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except CANNOT_BE_READ as error:
        print(f"error: {error}", file=sys.stderr)
        return UNREADABLE
    except CANNOT_BE_DONE as error:
        print(f"error: {error}", file=sys.stderr)
        return REFUSED
