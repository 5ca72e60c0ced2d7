"""Translation of user errors into one message on stderr and an exit code. Other errors keep their traceback."""

import errno
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence

from mb_checkpoint.errors import (
    CheckpointConfigError,
    CheckpointFolderError,
    CheckpointLayoutError,
    CheckpointNotFoundError,
    CheckpointReadError,
    CheckpointSaveError,
    CheckpointScheduleError,
    CheckpointShapeError,
    DataloaderStateError,
    IncompleteCheckpointError,
    LocalStoreError,
    ManifestError,
    TrainStateError,
)
from mb_config import ConfigError, ConfigReadError, PlanError, Problem
from mb_data.errors import (
    BadDocumentError,
    CorpusError,
    DataPathError,
    DocumentNumberError,
    IndexedFormatError,
    NotEnoughSamplesError,
    TokenizerError,
    WorkerError,
)
from mb_launch import PortError, WorldError, report_failure
from mb_launch.failures import ERROR_FOLDER, FAILED
from mb_loop import (
    BatchSizeError,
    DataExhaustedError,
    DataIteratorError,
    NonFiniteLossError,
    ProgressLogError,
    ReplicaMismatchError,
    TrainSettingsError,
    ValidationSetError,
)
from mb_metrics import MetricsError
from mb_models.errors import BatchError
from mb_models.fsdp_rules import FsdpError
from mb_models.hf.errors import HuggingFaceError
from mb_models.peft.config import PeftError
from mb_models.rules import ModelConfigError
from mb_models.vocab import VocabularyError
from mb_overlap import BufferSettingsError, OverlapConflictError, OverlapRejectedError
from mb_resilience.nvrx_straggler import NVRxDetectorError
from mb_resilience.section_reporter import NoMonitorError
from mb_trainer.run_folder import NoCheckpointError, RunFolderError, UnwritableFolderError
from mb_verify import VerificationError


class LaunchError(ValueError):
    """Invalid request for processes or for a blend."""


class NothingToIndexError(ValueError):
    """Data for which nothing can be built before a run."""


class OutputExistsError(FileExistsError):
    """Output file that already exists and would be overwritten."""


REFUSED = 1
UNREADABLE = 2
INTERRUPTED = 130

CANNOT_BE_READ = (
    BadDocumentError,
    ConfigReadError,
    CorpusError,
    DataPathError,
    DocumentNumberError,
    IndexedFormatError,
    LaunchError,
    NoCheckpointError,
    TokenizerError,
    WorldError,
)
"""Errors of input that cannot be read (exit code 2)."""

CANNOT_BE_DONE = (
    BatchError,
    BatchSizeError,
    BufferSettingsError,
    DataExhaustedError,
    DataIteratorError,
    OverlapRejectedError,
    CheckpointConfigError,
    CheckpointFolderError,
    CheckpointLayoutError,
    CheckpointNotFoundError,
    CheckpointReadError,
    CheckpointSaveError,
    CheckpointScheduleError,
    CheckpointShapeError,
    DataloaderStateError,
    NVRxDetectorError,
    FsdpError,
    HuggingFaceError,
    IncompleteCheckpointError,
    LocalStoreError,
    ManifestError,
    ModelConfigError,
    NoMonitorError,
    NonFiniteLossError,
    NotEnoughSamplesError,
    OutputExistsError,
    NothingToIndexError,
    OverlapConflictError,
    PeftError,
    PlanError,
    PortError,
    ProgressLogError,
    ReplicaMismatchError,
    RunFolderError,
    TrainSettingsError,
    TrainStateError,
    UnwritableFolderError,
    ValidationSetError,
    VerificationError,
    VocabularyError,
    WorkerError,
)
"""Errors of valid input whose request cannot or must not be fulfilled (exit code 1)."""

CANNOT_BE_REACHED = (
    errno.EACCES,
    errno.EPERM,
    errno.ENAMETOOLONG,
    errno.ELOOP,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EEXIST,
)
"""Values of `errno` for a path that this user cannot access."""


def reported(work: Callable[[], int], *, environment: Mapping[str, str] | None = None) -> int:
    """Run `work` and return its exit code, or report its error and return the exit code of the error.

    An error that a user can cause is printed as one message on stderr; any other error keeps its traceback. A process
    that a launcher monitors records both for the launcher, which prints the first error of all processes.
    """
    environment = os.environ if environment is None else environment
    try:
        return work()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        told = message_of(error)
        if told is not None:
            text, code = told
            return report_failure(text, exit_code=code, environment=environment)
        if ERROR_FOLDER not in environment:
            raise
        return report_failure(traceback.format_exc(), exit_code=FAILED, environment=environment)


def message_of(error: Exception) -> tuple[str, int] | None:
    """Return the message and the exit code of an error that a user can cause, or None for any other error."""
    if isinstance(error, ConfigError):
        return described(error.problems), REFUSED
    if isinstance(error, MetricsError):
        return str(error), UNREADABLE if error.bad_input else REFUSED
    if isinstance(error, CANNOT_BE_READ):
        return str(error), UNREADABLE
    if isinstance(error, CANNOT_BE_DONE):
        return str(error), REFUSED
    if isinstance(error, OSError) and error.errno in CANNOT_BE_REACHED and error.filename is not None:
        path = os.fsdecode(error.filename)
        advice = "Name another path, or change who may use it."
        return f"{path}: cannot be used ({error.strerror}). {advice}", UNREADABLE
    return None


def described(problems: Sequence[Problem]) -> str:
    """Return one line per problem, with the origins of the involved values that the user set."""
    lines = []
    for problem in problems:
        chosen = {
            path: origin
            for path, origin in problem.origin.items()
            if not origin.startswith(("default", "recipe"))
        }
        places = ", ".join(f"{path} from {origin}" for path, origin in chosen.items())
        lines.append(f"[{problem.id}] {problem}" + (f" ({places})" if places else ""))
    return "\n".join(lines)
