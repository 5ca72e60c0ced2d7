"""Why there is no plan."""


class PlanError(ValueError):
    """Sizes that cannot be counted: one is missing, does not divide, or belongs to a model that is not known here."""
