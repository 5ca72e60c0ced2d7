"""Error of a folder in the Hugging Face format, or of a model that cannot be exported to it. No torch."""


class HuggingFaceError(ValueError):
    """The folder or the model cannot be converted without changing what it computes."""
