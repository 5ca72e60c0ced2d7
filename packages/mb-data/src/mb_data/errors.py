"""Exceptions of this package. Standard library only."""


class BadDocumentError(ValueError):
    """An input file contains something that is not a document. The message names file and line."""


class CorpusError(ValueError):
    """The sources do not provide what the settings require."""


class DataPathError(FileNotFoundError):
    """A named file does not exist, or only one file of a `.bin`/`.idx` pair exists."""


class DocumentNumberError(IndexError):
    """A pair has no document with this number."""


class IndexedFormatError(ValueError):
    """A `.bin`/`.idx` pair does not match its header."""


class NotEnoughSamplesError(RuntimeError):
    """A dataset has fewer samples than requested."""


class TokenizerError(ValueError):
    """A tokenizer cannot be read, or lacks a required property."""


class TokenizerLibraryError(TokenizerError, ModuleNotFoundError):
    """The library that reads this kind of tokenizer is not installed."""


class WorkerError(RuntimeError):
    """A worker process exited without returning a result: it was killed, or ran out of memory."""
