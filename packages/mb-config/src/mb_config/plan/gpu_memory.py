"""Memory sizes of GPUs from the data sheets of their vendors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """Memory size of a GPU model."""

    gigabytes: int
    """Memory in units of 10^9 bytes, as in data sheets."""
    source: str

    @property
    def size(self) -> int:
        """Memory in bytes."""
        return self.gigabytes * 10**9


GPU_MEMORY: Mapping[str, GpuMemory] = MappingProxyType(
    {
        "a100": GpuMemory(80, "NVIDIA A100 80GB data sheet (2021); the first A100 has 40"),
        "a800": GpuMemory(80, "as the A100 80GB"),
        "h100": GpuMemory(80, "NVIDIA H100 data sheet, column SXM; the NVL has 94"),
        "h800": GpuMemory(80, "as the H100 SXM"),
        "h200": GpuMemory(141, "NVIDIA H200 data sheet"),
        "gh200": GpuMemory(96, "NVIDIA GH200 data sheet, HBM3; 144 with HBM3e"),
        "h20": GpuMemory(96, "NVIDIA H20 product brief"),
        "b200": GpuMemory(180, "NVIDIA HGX B200 data sheet, 1,440 GB on eight"),
        "gb200": GpuMemory(186, "NVIDIA GB200 NVL72 data sheet, 13.4 TB on 72"),
        "b300": GpuMemory(288, "NVIDIA HGX B300 data sheet, 2.3 TB on eight"),
        "gb300": GpuMemory(288, "NVIDIA GB300 NVL72 data sheet, 20 TB on 72, rounded there"),
        "l40s": GpuMemory(48, "NVIDIA L40S data sheet"),
        "mi300x": GpuMemory(192, "AMD Instinct MI300X data sheet"),
    }
)
"""Short lower-case name to memory. The part reserved by the driver, some hundred megabytes, is not subtracted."""
