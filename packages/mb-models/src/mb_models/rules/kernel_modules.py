"""Modules outside of Megatron Core that provide kernels for model settings. No torch."""

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from types import MappingProxyType

KERNEL_MODULES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "apex_installed": ("apex",),
        "fused_weight_gradient_installed": ("fused_weight_gradient_mlp_cuda",),
        "fused_softmax_installed": (
            "scaled_masked_softmax_cuda",
            "scaled_softmax_cuda",
            "scaled_upper_triang_masked_softmax_cuda",
        ),
    }
)
"""Fact -> modules that Megatron Core imports for it, all of them parts of Apex with its CUDA extensions."""


def kernel_facts(*, find: Callable[[str], object] = find_spec) -> dict[str, bool]:
    """Return the facts of `KERNEL_MODULES` for this process; imports nothing.

    Args:
        find: returns None for a module that cannot be imported.
    """
    return {fact: all(find(name) is not None for name in modules) for fact, modules in KERNEL_MODULES.items()}
