"""Errors of a folder in the Hugging Face format, or of a model that cannot be exported to it. No torch."""

from typing import ClassVar

from mb_models.errors import ModelsError


class HuggingFaceError(ModelsError, ValueError):
    """The folder or the model cannot be converted without changing what it computes."""


class OutputExistsError(ModelsError, FileExistsError):
    """The output folder of a conversion holds files."""


class HuggingFaceFolderError(HuggingFaceError):
    """The folder holds no model in the Hugging Face format, or its config.json cannot be read."""

    bad_input: ClassVar[bool] = True
