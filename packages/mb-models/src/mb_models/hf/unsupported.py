"""Well-known architectures that cannot be converted, and what is missing. No torch."""

from collections.abc import Mapping

_OUTPUT_BIAS = "Megatron Core's output layer has no bias"

UNSUPPORTED: Mapping[str, str] = {
    "bamba": "a layer of it is two of a pattern, whose names of weights are not implemented",
    "zamba2": "Megatron Core has no layers that share weights",
    "falcon_h1": "Megatron Core has no layers with attention and Mamba in parallel",
    "llama4": "Megatron Core has no chunked attention, and no scaling of queries by their position",
    "phi": _OUTPUT_BIAS,
    "gptj": _OUTPUT_BIAS,
    "falcon": "its layouts of queries, keys and values, and its biases by layer, are not implemented",
}
"""model_type of config.json -> what Megatron Core, or this package, does not compute."""
