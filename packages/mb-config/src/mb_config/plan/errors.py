"""Errors of resource plans."""

from mb_config.errors import ConfigurationError


class PlanError(ConfigurationError, ValueError):
    """A size is missing, does not divide, or belongs to an unsupported model, so that there is no plan."""
