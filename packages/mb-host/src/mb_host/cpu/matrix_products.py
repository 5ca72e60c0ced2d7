"""Faster CPU operations: matrix products with oneDNN where MKL does not use AVX-512, and reused large tensors.

torch computes products of float32 matrices with MKL, which uses AVX-512 on processors of Intel only. On other
processors that have it, oneDNN, which is part of torch as well, is about twice as fast. The last bits differ, because
it sums in another order.
"""

import ctypes
import functools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

MIN_OPERATIONS = 1 << 22
"""Multiplications of a product from which oneDNN is used; smaller ones cost more to call than to compute."""
_PRODUCTS = (torch.matmul, torch.Tensor.matmul)


@functools.cache
def is_onednn_faster(cpu_info: str = "/proc/cpuinfo") -> bool:
    """Return whether oneDNN has AVX-512 on this processor and MKL does not use it.

    Args:
        cpu_info: File of Linux that describes the processors.
    """
    return (
        torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and _vendor(Path(cpu_info)) not in ("GenuineIntel", None)
    )


def matrix_product(left: Tensor, right: Tensor) -> Tensor:
    """Return the product of `left`, [..., m, k], and `right`, [k, n], with oneDNN if it is large enough.

    Gradients are not recorded if oneDNN is used. Other types than float32, other devices and autocast are torch's.
    """
    if not _is_eligible(left, right):
        return torch.matmul(left, right)
    # a linear layer: the second argument is transposed
    result = torch.ops.mkldnn._linear_pointwise(left.flatten(0, -2), right.t(), None, "none", [], "")
    # not a view, which a custom autograd function could not return to code that changes it in place
    return torch.ops.aten._unsafe_view(result, [*left.shape[:-1], right.size(1)])  # type: ignore[no-any-return]


class OneDnnProducts(TorchFunctionMode):
    """Context in which `torch.matmul` is `matrix_product`. For code that records no gradients."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function of torch, or the product."""
        if func in _PRODUCTS and not kwargs and len(args) == 2:
            return matrix_product(*args)
        return func(*args, **(kwargs or {}))


def _is_eligible(left: Tensor, right: Tensor) -> bool:
    return (
        left.dtype == right.dtype == torch.float32
        and left.device.type == right.device.type == "cpu"
        and right.dim() == 2
        and left.dim() > 1
        and left.numel() * right.size(1) >= MIN_OPERATIONS
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


def _vendor(cpu_info: Path) -> str | None:
    try:
        lines = cpu_info.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), None)


_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1
"""Parameters of `mallopt`, the C library's function for the settings of its allocator."""
MAX_BLOCK_BYTES = 128 << 20
MAX_KEPT_BYTES = 512 << 20


def keep_large_blocks() -> bool:
    """Let the allocator keep the freed memory of tensors of up to 128 MiB, at most 512 MiB at the end of the heap.

    By default the GNU C library returns a block of 32 MiB or more to the system when it is freed. The next tensor of
    this size, such as the logits of a step, then gets pages that the system has to clear: twice the time of the
    operation that writes it. Results do not change.

    Returns:
        Whether the C library has these settings. Others are not changed.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    return bool(mallopt(_MMAP_THRESHOLD, MAX_BLOCK_BYTES)) and bool(mallopt(_TRIM_THRESHOLD, MAX_KEPT_BYTES))
