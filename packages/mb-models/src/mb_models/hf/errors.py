"""What can be wrong with a folder in Hugging Face's form, or with a model that is to become one. No torch."""


class HuggingFaceError(ValueError):
    """The folder or the model cannot be converted without changing what it computes."""
