"""Errors of this package."""


class VerificationError(RuntimeError):
    """A run of the proof failed, ended early or recorded nothing, so that there is nothing to compare."""
