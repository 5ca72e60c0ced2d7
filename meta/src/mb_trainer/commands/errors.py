"""Errors that a user can cause become one message on stderr and an exit code; all others keep their traceback."""

import sys
from collections.abc import Callable

from mb_checkpoint import CheckpointFolderError
from mb_config import ConfigError, ConfigReadError
from mb_data import DataPathError, IndexedFormatError
from mb_trainer.processes import WorldError
from mb_trainer.run_folder import RunFolderError

REFUSED = 1
UNREADABLE = 2
INTERRUPTED = 130

EXIT_CODES: tuple[tuple[tuple[type[Exception], ...], int], ...] = (
    ((ConfigReadError, DataPathError, IndexedFormatError, WorldError), UNREADABLE),
    ((ConfigError, RunFolderError, CheckpointFolderError), REFUSED),
)
"""Kinds of errors and the exit code of each."""


def reported(work: Callable[[], int]) -> int:
    """Do the work and return its exit code, or say what a user did wrong and return the code of that."""
    try:
        return work()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        for kinds, code in EXIT_CODES:
            if isinstance(error, kinds):
                print(f"error: {error}", file=sys.stderr)
                return code
        raise
