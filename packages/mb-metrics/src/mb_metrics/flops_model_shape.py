"""What the FLOP counts read of a model: sizes by Megatron's field names, and which layer is of which kind."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

_OTHER_NAMES = {
    "gated_linear_unit": "swiglu",
    "num_moe_experts": "num_experts",
    "hybrid_layer_pattern": "hybrid_override_pattern",
    "vocab_size": "padded_vocab_size",
}


class UnknownFlopsError(ValueError):
    """The FLOPs of this model cannot be counted."""


class FlopsModelShape:
    """The sizes of a model, from any object with Megatron's field names or a mapping of them.

    A field that is not there is as good as None: sections of different architectures have different fields.
    """

    def __init__(self, model: object) -> None:
        self._model = model

    def value(self, name: str) -> Any:
        """Return a field, or None where the model has no such field."""
        names = [name, _OTHER_NAMES[name]] if name in _OTHER_NAMES else [name]
        for each in names:
            found = (
                self._model.get(each)
                if isinstance(self._model, Mapping)
                else getattr(self._model, each, None)
            )
            if found is not None:
                return found
        return None

    def flag(self, name: str) -> bool:
        """Tell whether a field is there and true."""
        return bool(self.value(name))

    def size(self, name: str, default: int | None = None) -> int:
        """Return a positive number of things.

        Raises:
            UnknownFlopsError: it is neither there nor has a default, or is not positive.
        """
        found = self.value(name)
        number = default if found is None else found
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise UnknownFlopsError(
                f"model.{name}: FLOPs need it as a positive whole number ({name}={number!r}), because they are "
                "proportional to it. Set it, or pass your own number of FLOPs per token."
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
        """Tokens seen to the left and right in layers with a sliding window; -1: all."""
        window = self.value("window_size")
        return None if window is None else (int(window[0]), int(window[1]))

    def has_window(self, layer: int) -> bool:
        """Tell whether a layer, counted from 0, has a sliding window (Megatron's `window_attn_skip_freq`)."""
        skip = self.value("window_attn_skip_freq")
        if self.window is None or skip is None:
            return self.window is not None
        return (layer + 1) % int(skip) != 0 if isinstance(skip, int) else bool(_listed(skip, layer, "window"))

    def has_experts(self, layer: int) -> bool:
        """Tell whether a layer, counted from 0, has experts (Megatron's `moe_layer_freq`)."""
        if self.value("num_moe_experts") is None:
            return False
        frequency = self.value("moe_layer_freq")
        if frequency is None or isinstance(frequency, int):
            return layer % (frequency or 1) == 0
        return bool(_listed(frequency, layer, "moe_layer_freq"))

    def has_linear_attention(self, layer: int) -> bool:
        """Tell whether a layer, counted from 0, has linear attention (Megatron's `linear_attention_freq`).

        Raises:
            UnknownFlopsError: the model has another experimental kind of attention.
        """
        variant = self.value("experimental_attention_variant")
        if variant is None:
            return False
        if variant != "gated_delta_net":
            raise UnknownFlopsError(
                f"model.experimental_attention_variant: no formula for {variant!r}; what it computes depends on the "
                "data. Pass your own number of FLOPs per token."
            )
        frequency = self.size("linear_attention_freq", 1) if not self._has_list() else None
        if frequency is not None:
            return (layer + 1) % frequency != 0
        return bool(_listed(self.value("linear_attention_freq"), layer, "linear_attention_freq"))

    def _has_list(self) -> bool:
        return isinstance(self.value("linear_attention_freq"), Sequence)


def _listed(pattern: object, layer: int, name: str) -> object:
    if isinstance(pattern, str) or not isinstance(pattern, Sequence) or layer >= len(pattern):
        raise UnknownFlopsError(
            f"model.{name}: says nothing of layer {layer} ({name}={pattern!r}); it is a number or a list with an "
            "entry per layer. Write it so."
        )
    return pattern[layer]


def positions_per_token(
    lengths: Collection[float], *, window: tuple[int, int] | None = None, causal: bool = True
) -> float:
    """Return how many positions a token attends to, on average over sequences of these lengths.

    A sequence of s tokens has s^2 pairs, of which a causal mask leaves s^2 / 2 (its diagonal counts half), and a window
    (left, right) those of its band; -1 is a window without end. Source: the area of the mask.
    """
    left, right = (-1, -1) if window is None else window
    pairs = 0.0
    for length in lengths:
        pairs += _band(length, length if left < 0 else left + 1)
        if not causal:
            pairs += _band(length, length if right < 0 else right)
    return pairs / sum(lengths)


def _band(length: float, reach: float) -> float:
    reach = min(reach, length)
    return length * reach - reach**2 / 2
