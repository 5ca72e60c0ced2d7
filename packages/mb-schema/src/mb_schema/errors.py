"""Base class of the errors of all packages."""

from typing import ClassVar


class PackageError(Exception):
    """Base class of the base class of each package: either bad input or a failure.

    `bad_input` selects the exit code of a program: 2 for bad input, 1 for a failure.
    """

    bad_input: ClassVar[bool] = False
    """If True, the request could not be read; otherwise it was read, and was rejected or failed."""
    internal: ClassVar[bool] = False
    """If True, the calling code is wrong or an invariant is broken: a program prints the traceback."""
