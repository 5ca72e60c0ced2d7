"""What can be wrong with data. Standard library only."""


class BadDocumentError(ValueError):
    """An input file has something that is not a document; the message names file and line."""


class CorpusError(ValueError):
    """The sources do not give what the settings ask for."""


class DataPathError(FileNotFoundError):
    """A file that was named is not there, or only half of a `.bin`/`.idx` pair."""


class DocumentNumberError(IndexError):
    """A pair has no document of this number."""


class IndexedFormatError(ValueError):
    """A `.bin`/`.idx` pair is not what its header says."""


class NotEnoughSamplesError(RuntimeError):
    """A dataset has too few samples for what was asked of it."""


class TokenizerError(ValueError):
    """A tokenizer cannot be read, or does not fit what was asked of it."""


class TokenizerLibraryError(TokenizerError, ModuleNotFoundError):
    """The library that reads a kind of tokenizer is not installed."""


class WorkerError(RuntimeError):
    """A worker process ended without an answer: killed, or out of memory."""
