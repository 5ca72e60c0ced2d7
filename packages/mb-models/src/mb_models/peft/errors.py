"""Error of adapters that are not supported as configured. No torch."""

from mb_models.errors import ModelsError


class PeftError(ModelsError, ValueError):
    """Adapters that are not supported as configured."""
