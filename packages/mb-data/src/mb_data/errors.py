"""Exceptions of this package. Standard library only."""

import re

from mb_schema.errors import PackageError

_OF_WORKER = re.compile(r"Caught \w+ in DataLoader worker process .*\n[\w.]+: (.*)", re.DOTALL)
"""Text with which torch raises an error of a worker process again: the traceback there, and the message last."""


class DataError(PackageError):
    """Base class of the errors of this package: either bad input or a failure.

    `bad_input` selects the exit code of the command line: 2 for bad input, 1 for a failure. An error in a worker of a
    `DataLoader` has the same message as in this process.
    """

    def __init__(self, *arguments: object) -> None:
        match = _OF_WORKER.fullmatch(arguments[0]) if arguments and isinstance(arguments[0], str) else None
        super().__init__(*((match[1].rstrip(),) if match else arguments))


class BadDocumentError(DataError, ValueError):
    """An input file contains something that is not a document. The message names file and line."""

    bad_input = True


class BlendError(DataError, ValueError):
    """A text cannot be parsed as a blend of prefixes and weights."""

    bad_input = True


class BuildOptionError(DataError, ValueError):
    """An option of a build has none of its values."""

    bad_input = True


class ChatTemplateError(DataError, ValueError):
    """A chat template cannot be parsed, or rejects a conversation."""

    bad_input = True


class CorpusError(DataError, ValueError):
    """The sources do not provide what the settings require."""

    bad_input = True


class DataPathError(DataError, FileNotFoundError):
    """A named file does not exist, or only one file of a `.bin`/`.idx` pair exists."""

    bad_input = True


class DatasetError(DataError, ValueError):
    """The settings of a dataset do not fit its samples, its tokenizer or the installed Megatron Core."""

    bad_input = True


class DocumentFunctionError(DataError, RuntimeError):
    """A function of the user, which filters or converts documents, cannot be called or returned something else."""

    bad_input = True


class DocumentNumberError(DataError, IndexError):
    """A pair has no document with this number."""

    bad_input = True


class EngineError(DataError, RuntimeError):
    """The engine of a build is not there, or did not build all shards."""


class FormatLibraryError(DataError, ModuleNotFoundError):
    """The library that reads this format of files is not installed."""

    bad_input = True


class IndexedFormatError(DataError, ValueError):
    """A `.bin`/`.idx` pair does not match its header."""

    bad_input = True


class UnknownStepError(DataError, ValueError):
    """A run has not made a step, or has no such rank."""

    bad_input = True


class NothingToIndexError(DataError, ValueError):
    """The datasets of a section have no sample indices."""


class NotEnoughSamplesError(DataError, RuntimeError):
    """A dataset has fewer samples than requested."""


class OpenFilesError(DataError, OSError):
    """A dataset keeps more files open than a process may open."""


class PairExistsError(DataError, FileExistsError):
    """A `.bin`/`.idx` pair exists and would be overwritten."""


class SampleError(DataError, RuntimeError):
    """A sample cannot be read, for a reason of the library that reads it."""


class SectionFileError(DataError, ValueError):
    """A file of sections cannot be read."""

    bad_input = True


class ShardPlanError(DataError, ValueError):
    """A sharded build cannot resume: options, inputs or functions are not those with which it began."""

    bad_input = True


class TokenizerError(DataError, ValueError):
    """A tokenizer cannot be read, or lacks a required property."""

    bad_input = True


class TokenizerLibraryError(TokenizerError, ModuleNotFoundError):
    """The library that reads this kind of tokenizer is not installed."""


class ValidationDataError(DataError, ValueError):
    """The validation data does not have the sets that the settings require."""


class WorkerError(DataError, RuntimeError):
    """A worker process exited without returning a result: it was killed, or ran out of memory."""
