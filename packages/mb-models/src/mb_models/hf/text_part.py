"""Text part of models with further parts: its config.json, and the names of its tensors. Standard library only."""

from collections.abc import Mapping
from typing import Any

from mb_models.errors import HuggingFaceError

MULTIMODAL: Mapping[str, Mapping[str, object]] = {
    "gemma3": {"num_attention_heads": 8, "vocab_size": 262_208},
}
"""model_type of config.json -> values of its `text_config` that transformers uses if they are missing."""

_TEXT = "language_model."
_FURTHER = ("vision_tower.", "multi_modal_projector.", "mtp.")
_OF_BOTH = ("tie_word_embeddings", "bos_token_id", "eos_token_id", "pad_token_id")


def text_config(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config.json of the text part of a model, or that of a model without other parts unchanged.

    Raises:
        HuggingFaceError: the part is missing.
    """
    defaults = MULTIMODAL.get(str(content.get("model_type")))
    if defaults is None:
        return dict(content)
    part = content.get("text_config")
    if not isinstance(part, dict):
        raise HuggingFaceError(
            f"config.json: has no text_config, because a {content['model_type']} has one. Download the file again."
        )
    shared = {name: content[name] for name in _OF_BOTH if name in content}
    return {**defaults, **part, **shared}


def text_tensor(name: str) -> str | None:
    """Return the name of a tensor in a model of text alone; None if it is of an image encoder or of further tokens."""
    return None if name.startswith(_FURTHER) else name.removeprefix(_TEXT)
