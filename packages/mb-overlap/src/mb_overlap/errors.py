"""Base class of the errors of the package."""

from mb_schema.errors import PackageError


class OverlapError(PackageError):
    """Base class of the errors of this package: either bad input or a failure."""
