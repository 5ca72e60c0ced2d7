"""Errors of data that a model cannot take; importable without torch."""


class BatchError(ValueError):
    """A microbatch that the model cannot take."""
