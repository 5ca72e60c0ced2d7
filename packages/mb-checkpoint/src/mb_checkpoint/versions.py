"""Versions of torch and nvidia-resiliency-ext (NVRx) that work with Megatron Core. Standard library only."""

from collections.abc import Mapping

MIN_VERSION = (0, 3)
"""Minimum version with the local checkpoints that this package writes."""

MIN_TORCH = (2, 8)
"""Minimum torch version: that of `torch` in pyproject.toml, the lowest with which loading is tested."""

INCOMPATIBLE_VERSIONS: Mapping[tuple[int, ...], str] = {
    (0, 4): "Megatron Core reads its __version__ while it is imported, which it lacks",
    (
        0,
        5,
    ): "Megatron Core demands 0.6 or newer of a version with this background writer while it is imported",
}
"""Releases with which Megatron Core 0.19 cannot be imported, and the reason."""
