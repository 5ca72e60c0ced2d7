"""Reuse of the memory of large tensors on the CPU."""

import ctypes

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
