"""Fields of config.json on the kinds of layers: biases, windows, rotation and experts. No torch."""

from collections.abc import Mapping, Sequence
from typing import Any

from mb_models.config import GPTModelConfig, TransformerFields
from mb_models.errors import HuggingFaceError

FULL, WINDOW = "full_attention", "sliding_attention"


def read_window(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the window of a section; transformers counts a token itself, Megatron Core the tokens before it.

    Raises:
        HuggingFaceError: `layer_types` has other layers than those with and without a window.
    """
    used = content.get("use_sliding_window", True)
    width = content.get("sliding_window") if used else None
    layers = content["num_hidden_layers"]
    first = content.get("max_window_layers") if "use_sliding_window" in content else None
    kinds = content.get("layer_types") or [
        FULL if width is None or layer < (first or 0) else WINDOW for layer in range(layers)
    ]
    if not set(kinds) <= ({FULL, WINDOW} if width else {FULL}) or len(kinds) != layers:
        raise HuggingFaceError(
            f"config.json: layer_types={kinds!r} cannot be converted with sliding_window={width!r}, "
            f"num_hidden_layers={layers}, because each layer has full attention, or that window. Correct the file."
        )
    if width is None or WINDOW not in kinds:
        return {}
    flags = [int(kind == WINDOW) for kind in kinds]
    return {"window_size": (int(width) - 1, 0), "window_attn_skip_freq": None if all(flags) else flags}


def windows_but_every(content: Mapping[str, Any], interval: int) -> list[str]:
    """Return the kinds of layers, of which each n-th has full attention; 0: none of them."""
    layers = range(1, content["num_hidden_layers"] + 1)
    return [FULL if interval and layer % interval == 0 else WINDOW for layer in layers]


def write_window(config: GPTModelConfig) -> dict[str, Any]:
    """Return the window of all layers, for families without a choice by layer."""
    return {"sliding_window": None if config.window_size is None else config.window_size[0] + 1}


def write_layer_types(config: GPTModelConfig) -> dict[str, Any]:
    """Return the layers with a window, and their window; transformers needs a number even if no layer has one."""
    kinds = [WINDOW if flag else FULL for flag in windowed_layers(config)]
    return {**(write_window(config) if WINDOW in kinds else {}), "layer_types": kinds}


def write_layer_windows(config: GPTModelConfig) -> dict[str, Any]:
    """Return the windows by layer, for families with `layer_types`."""
    flags = windowed_layers(config)
    return {
        **write_layer_types(config),
        "use_sliding_window": config.window_size is not None,
        "max_window_layers": flags.index(1) if 1 in flags else config.num_layers,
    }


def windowed_layers(config: TransformerFields) -> list[int]:
    """Return 1 for each layer with a window and 0 for each other, as Megatron Core counts them."""
    skips = config.window_attn_skip_freq
    if config.window_size is None:
        return [0] * config.num_layers
    if isinstance(skips, Sequence):
        return [int(bool(flag)) for flag in skips]
    return [int(not skips or number % skips != 0) for number in range(1, config.num_layers + 1)]


def read_biases(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return whether all linear layers have biases; Megatron Core has one switch for attention and MLP."""
    biases = {name: bool(content.get(name)) for name in ("attention_bias", "mlp_bias")}
    if len(set(biases.values())) > 1:
        raise HuggingFaceError(
            f"config.json: attention_bias={biases['attention_bias']}, mlp_bias={biases['mlp_bias']} cannot be "
            "converted, because Megatron Core has output biases in both attention and MLP, or in none."
        )
    return {"add_bias_linear": biases["mlp_bias"]}


def write_biases(config: GPTModelConfig) -> dict[str, Any]:
    """Return both switches of the biases."""
    return dict.fromkeys(("attention_bias", "mlp_bias"), config.add_bias_linear)


def without_rotation(flags: Sequence[int]) -> dict[str, Any]:
    """Return the fields of layers without rotary positions, which have the flag 1."""
    return {"transformer": {"no_rope_freq": list(flags)}} if any(flags) else {}


def unrotated_layers(config: TransformerFields) -> list[int]:
    """Return 1 for each layer without rotary positions and 0 for each other, as Megatron Core counts them."""
    every: Any = config.transformer.get("no_rope_freq")
    if isinstance(every, Sequence):
        return [int(bool(flag)) for flag in every]
    return [int(bool(every) and number % every == 0) for number in range(1, config.num_layers + 1)]


def expert_layers(config: TransformerFields) -> list[int]:
    """Return 1 for each layer with experts and 0 for each dense one, as Megatron Core counts them."""
    every = config.moe_layer_freq
    if isinstance(every, Sequence):
        return [int(bool(flag)) for flag in every]
    return [int(number % every == 0) for number in range(config.num_layers)]


def layer_frequency(flags: Sequence[bool]) -> int | list[int]:
    """Return `moe_layer_freq` of the layers with experts."""
    return 1 if all(flags) else [int(flag) for flag in flags]
