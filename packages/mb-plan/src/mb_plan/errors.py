"""Errors of the package."""

from mb_schema.errors import PackageError


class PlanError(PackageError, ValueError):
    """A size is missing, does not divide, or belongs to an unsupported model, so that there is no plan."""


class ModelFileError(PlanError):
    """A file or an option from which no model can be read."""

    bad_input = True
