"""Well-known architectures that cannot be converted, and what is missing. No torch."""

from collections.abc import Mapping

_PARALLEL = "Megatron Core has no layers whose attention and MLP read the same input"
_POSITIONS = "Megatron Core rotates all layers with the same frequencies"

UNSUPPORTED: Mapping[str, str] = {
    "gemma3": "it has an image encoder, whose weights are not converted",
    "bamba": "a layer of it is two of a pattern, whose names of weights are not implemented",
    "zamba2": "Megatron Core has no layers that share weights",
    "falcon_h1": "Megatron Core has no layers with attention and Mamba in parallel",
    "qwen3_next": "names of weights of gated-delta layers are not implemented",
    "llama4": f"{_POSITIONS}, and has no chunked attention",
    "cohere": _PARALLEL,
    "cohere2": _PARALLEL,
    "phi": _PARALLEL,
    "gpt_neox": _PARALLEL,
    "gptj": _PARALLEL,
    "falcon": _PARALLEL,
}
"""model_type of config.json -> what Megatron Core, or this package, does not compute."""
