"""Errors of resource plans."""


class PlanError(ValueError):
    """A size is missing, does not divide, or belongs to an unsupported model, so that there is no plan."""
