"""Model dimensions for FLOP counts: sizes by Megatron's field names, and the kind of each layer."""

from collections.abc import Mapping, Sequence
from typing import Any

from mb_metrics.errors import MetricsError

_OTHER_NAMES = {
    "gated_linear_unit": "swiglu",
    "num_moe_experts": "num_experts",
    "hybrid_layer_pattern": "hybrid_override_pattern",
    "vocab_size": "padded_vocab_size",
}


class UnknownFlopsError(MetricsError, ValueError):
    """Error raised when the FLOPs of a model cannot be counted."""


class FlopsModelShape:
    """Dimensions of a model, from any object with Megatron's field names or a mapping of them.

    A missing field reads as None, because the sections of different architectures have different fields.
    """

    def __init__(self, model: object) -> None:
        self._model = model

    def value(self, name: str) -> Any:
        """Return a field, or None if the model does not define it."""
        value = self._read(name)
        return self._read(_OTHER_NAMES[name]) if value is None and name in _OTHER_NAMES else value

    def _read(self, name: str) -> Any:
        return self._model.get(name) if isinstance(self._model, Mapping) else getattr(self._model, name, None)

    def flag(self, name: str) -> bool:
        """Return True if a field is defined and true."""
        return bool(self.value(name))

    @property
    def prediction_depths(self) -> int:
        """Depths of multi-token prediction; those of a hybrid are the parts of its pattern after `/`."""
        pattern = self.value("hybrid_layer_pattern")
        return str(pattern).count("/") if pattern else int(self.value("mtp_num_layers") or 0)

    def size(self, name: str, default: int | None = None) -> int:
        """Return a field that is a positive integer.

        Raises:
            UnknownFlopsError: the field is missing and has no default, or is not a positive integer.
        """
        value = self.value(name)
        number = default if value is None else value
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise UnknownFlopsError(
                f"model.{name}: must be a positive integer ({name}={number!r}). FLOPs are proportional to it. Set it, "
                "or pass the FLOPs per token explicitly."
            )
        return number

    @property
    def hidden(self) -> int:
        """Width of the residual stream."""
        return self.size("hidden_size")

    @property
    def ffn(self) -> int:
        """Width inside a feed-forward layer."""
        return self.size("ffn_hidden_size", 4 * self.hidden)

    @property
    def matrices(self) -> int:
        """Matrices of a feed-forward layer."""
        return 3 if self.flag("gated_linear_unit") else 2

    @property
    def head(self) -> int:
        """Width of an attention head."""
        return self.size("kv_channels", self.hidden // self.size("num_attention_heads"))

    @property
    def groups(self) -> int:
        """Key-value heads."""
        heads = self.size("num_attention_heads")
        return heads if self.value("group_query_attention") is False else self.size("num_query_groups", heads)

    @property
    def window(self) -> tuple[int, int] | None:
        """Attended positions to the left and right in layers with a sliding window; -1: unlimited."""
        window = self.value("window_size")
        return None if window is None else (int(window[0]), int(window[1]))

    def has_window(self, layer: int) -> bool:
        """Return True if a layer, counted from 0, has a sliding window (Megatron's `window_attn_skip_freq`)."""
        skip = self.value("window_attn_skip_freq")
        if self.window is None or skip is None:
            return self.window is not None
        return (
            (layer + 1) % int(skip) != 0
            if isinstance(skip, int)
            else bool(_listed(skip, layer, "window_attn_skip_freq"))
        )

    def has_experts(self, layer: int) -> bool:
        """Return True if a layer, counted from 0, has experts (Megatron's `moe_layer_freq`)."""
        if self.value("num_moe_experts") is None:
            return False
        frequency = self.value("moe_layer_freq")
        if frequency is None or isinstance(frequency, int):
            return layer % (frequency or 1) == 0
        return bool(_listed(frequency, layer, "moe_layer_freq"))

    def has_linear_attention(self, layer: int) -> bool:
        """Return True if a layer, counted from 0, has linear attention (Megatron's `linear_attention_freq`).

        Raises:
            UnknownFlopsError: the model uses another experimental attention variant.
        """
        variant = self.value("experimental_attention_variant")
        if variant is None:
            return False
        if variant != "gated_delta_net":
            raise UnknownFlopsError(
                f"model.experimental_attention_variant: no formula for {variant!r}. Its FLOPs depend on the data. "
                "Pass the FLOPs per token explicitly."
            )
        frequency = self.value("linear_attention_freq")
        if isinstance(frequency, Sequence):
            return bool(_listed(frequency, layer, "linear_attention_freq"))
        return (layer + 1) % self.size("linear_attention_freq", 1) != 0


def _listed(pattern: object, layer: int, name: str) -> object:
    if isinstance(pattern, str) or not isinstance(pattern, Sequence) or layer >= len(pattern):
        raise UnknownFlopsError(
            f"model.{name}: no entry for layer {layer} ({name}={pattern!r}). The kind of every layer must be known. "
            "Set a number, or a list with one entry per layer."
        )
    return pattern[layer]
