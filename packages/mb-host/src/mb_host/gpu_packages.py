"""Packages of GPU kernels that may be installed on a machine without a GPU, such as the login node of a cluster.

Megatron Core uses such a package whenever it can be imported. Without a GPU its import fails with an error other than
ImportError, or its optimizers and layers fail in the first step.
"""

import sys
from collections.abc import MutableMapping
from types import ModuleType
from typing import cast

GPU_PACKAGES = (
    "transformer_engine",
    "transformer_engine_torch",
    "apex",
    "amp_C",
    "fused_layer_norm_cuda",
    "fused_weight_gradient_mlp_cuda",
    "flash_attn",
    "flash_attn_3",
    "flashattn_hopper",
    "flash_mla",
    "flashinfer",
    "mamba_ssm",
    "causal_conv1d",
    "fla",
    "grouped_gemm",
    "deep_ep",
    "hybrid_ep_cpp",
)
"""Top-level modules whose kernels require a GPU and that Megatron Core tries to import."""


def hide_packages() -> None:
    """Make the import of `GPU_PACKAGES` fail with ModuleNotFoundError in this process, as if they were not installed.

    None in `sys.modules` is Python's marker for that; `importlib.util.find_spec` also returns None for it. Modules that
    are already loaded remain valid where they are referenced, and cannot be imported again.
    """
    modules = cast("MutableMapping[str, ModuleType | None]", sys.modules)
    loaded = {name for name in modules if name.partition(".")[0] in GPU_PACKAGES}
    for name in {*GPU_PACKAGES, *loaded}:
        modules[name] = None
