"""Error of a folder in the Hugging Face format, or of a model that cannot be exported to it. No torch."""

from mb_models.errors import ModelsError


class HuggingFaceError(ModelsError, ValueError):
    """The folder or the model cannot be converted without changing what it computes."""
