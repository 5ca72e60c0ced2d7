"""Speeds of GPUs: matrix units, memory, NVLink and network, from NVIDIA's data sheets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpeed:
    """Peak speeds of one GPU in its common system."""

    bf16: float
    """Dense matrix products in BF16, FLOP/s."""
    fp8: float | None
    """In FP8, FLOP/s; None: not supported."""
    fp4: float | None
    """In FP4, FLOP/s; None: not supported."""
    exponentials: float
    """Exponentials/s of the special function units, as of a softmax."""
    memory: float
    """Bytes/s of the device memory."""
    nvlink: float
    """Bytes/s to other GPUs over NVLink, one direction."""
    network: float
    """Bytes/s to other systems, one direction."""
    nvlink_gpus: int
    """GPUs that NVLink connects."""
    source: str

    def peak(self, precision: str) -> float | None:
        """Return the FLOP/s of products in "bf16", "fp8" or "fp4"; None: not supported."""
        return {"bf16": self.bf16, "fp8": self.fp8, "fp4": self.fp4}[precision]


def _gpu(
    nvlink_gpus: int,
    peaks: tuple[float, float | None, float | None],
    exponentials: float,
    memory: float,
    nvlink: float,
    network: float,
    source: str,
) -> GpuSpeed:
    """Return a row: TFLOP/s in BF16, FP8 and FP4, 10^12 exponentials/s, TB/s, and GB/s of NVLink and network."""
    bf16, fp8, fp4 = peaks
    return GpuSpeed(
        bf16=bf16 * 1e12,
        fp8=None if fp8 is None else fp8 * 1e12,
        fp4=None if fp4 is None else fp4 * 1e12,
        exponentials=exponentials * 1e12,
        memory=memory * 1e12,
        nvlink=nvlink * 1e9,
        network=network * 1e9,
        nvlink_gpus=nvlink_gpus,
        source=source,
    )


GPU_SPEEDS: Mapping[str, GpuSpeed] = MappingProxyType(
    {
        "a100": _gpu(8, (312, None, None), 2.4, 2.04, 300, 25, "A100 80GB SXM data sheet; HDR InfiniBand"),
        "h100": _gpu(8, (989, 1979, None), 4.5, 3.35, 450, 50, "H100 SXM data sheet; NDR InfiniBand"),
        "h200": _gpu(8, (989, 1979, None), 4.5, 4.8, 450, 50, "H200 SXM data sheet; NDR InfiniBand"),
        "b200": _gpu(8, (2250, 4500, 9000), 5.0, 8.0, 900, 50, "DGX B200 data sheet; ConnectX-7"),
        "b300": _gpu(8, (2250, 4500, 13500), 10.7, 8.0, 900, 100, "HGX B300 data sheet; ConnectX-8"),
        "gb200": _gpu(72, (2500, 5000, 10000), 5.0, 8.0, 900, 50, "GB200 NVL72 data sheet; ConnectX-7"),
        "gb300": _gpu(72, (2500, 5000, 15000), 10.7, 8.0, 900, 100, "GB300 NVL72 data sheet; ConnectX-8"),
    }
)
"""Short name to speeds, without sparsity. Exponentials: NVIDIA, "Inside NVIDIA Blackwell Ultra" (2025); of A100 16 in
each of 108 multiprocessors' cycles at 1.41 GHz."""
