"""Modules of `megatron.bridge`.

A recipe written for Megatron-Bridge moves by replacing `megatron.bridge` with `mb_trainer.bridge` in its imports. The
names are those of the trainer's packages; `_names.py` lists where each one is. The import of another one names what
replaces it.
"""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec

_IN_PLACE = {
    "AutoBridge": "Set checkpoint.pretrained_checkpoint to the Hugging Face folder; see mb import-hf and mb export-hf.",
    "recipes": "`mb recipes` lists the recipes; in Python they are mb_trainer.RECIPES.",
    "models": "Models are sections of mb_models, such as GPTModelConfig; this module has GPT, T5 and Mamba providers.",
    "data": "Datasets are sections of mb_data, such as FinetuningDatasetConfig.",
}
_ELSEWHERE = "The page Megatron-Bridge of the documentation lists what is in the place of its modules."


def _message(name: str) -> str:
    part = name.removeprefix(f"{__name__}.").partition(".")[0]
    return f"{name}: Megatron-Bridge has it, and this trainer has not. {_IN_PLACE.get(part, _ELSEWHERE)}"


class _Missing:
    """Finder that is called last: what reaches it is not a module of this package."""

    @staticmethod
    def find_spec(name: str, _path: Sequence[str] | None = None, _target: object = None) -> ModuleSpec | None:
        """Raise ModuleNotFoundError for a module of Megatron-Bridge that is missing here."""
        if name.startswith(f"{__name__}."):
            raise ModuleNotFoundError(_message(name), name=name)
        return None


sys.meta_path.append(_Missing)


def __getattr__(name: str) -> object:
    if name == "AutoBridge":  # the others are submodules
        raise ImportError(_message(f"{__name__}.{name}"), name=__name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
