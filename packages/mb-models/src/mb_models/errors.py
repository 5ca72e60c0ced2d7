"""Errors of data that a model cannot process; importable without torch."""


class BatchError(ValueError):
    """A microbatch that the model cannot process."""
