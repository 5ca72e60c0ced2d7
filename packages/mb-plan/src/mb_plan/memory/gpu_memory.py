"""Memory sizes of GPUs: what CUDA offers to a program where that is published, else the vendor's data sheet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """Memory size of a GPU model."""

    size: int
    """Memory in bytes."""
    source: str


def _cuda(gibibytes: float, source: str) -> GpuMemory:
    """Return what CUDA and PyTorch report as the total memory, in units of 2^30 bytes."""
    return GpuMemory(int(gibibytes * 2**30), source)


def _data_sheet(gigabytes: int, source: str) -> GpuMemory:
    """Return the size in a data sheet, in units of 10^9 bytes; CUDA usually offers some percent more."""
    return GpuMemory(gigabytes * 10**9, source)


GPU_MEMORY: Mapping[str, GpuMemory] = MappingProxyType(
    {
        "a100": _cuda(79.25, "total capacity in PyTorch's messages for the A100 80GB; the first A100 has 40"),
        "a800": _cuda(79.25, "as the A100 80GB"),
        "h100": _cuda(
            79.1,
            "total capacity in PyTorch's messages for the H100 SXM (nvidia-smi: 81,559 MiB); the NVL has 94 GB",
        ),
        "h800": _cuda(79.1, "as the H100 SXM"),
        "h200": _cuda(
            139.7, "nvidia-smi reports 143,771 MiB, of which CUDA offers about 0.6 GiB less, as on the H100"
        ),
        "gh200": _data_sheet(96, "NVIDIA GH200 data sheet, HBM3; 144 with HBM3e"),
        "h20": _data_sheet(96, "NVIDIA H20 product brief"),
        "b200": _cuda(
            178.35, "total global memory that the CUDA driver reports (torchao, pull request 4002)"
        ),
        "gb200": _data_sheet(186, "NVIDIA GB200 NVL72 data sheet, 13.4 TB on 72"),
        "b300": _data_sheet(288, "NVIDIA HGX B300 data sheet, 2.3 TB on eight"),
        "gb300": _data_sheet(288, "NVIDIA GB300 NVL72 data sheet, 20 TB on 72, rounded there"),
        "l40s": _data_sheet(48, "NVIDIA L40S data sheet"),
        "mi300x": _data_sheet(192, "AMD Instinct MI300X data sheet"),
    }
)
"""Short lower-case name to memory."""
