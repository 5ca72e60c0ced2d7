"""Dense peak throughput of GPUs as stated by the vendors, without the factor two of structured sparsity."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

_DTYPES = {
    "float64": "fp64",
    "float32": "fp32",
    "tensorfloat32": "tf32",
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    "float8": "fp8",
    "mxfp8": "fp8",
    "float4_e2m1fn_x2": "fp4",
    "nvfp4": "fp4",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPeak:
    """Dense peak throughput of one GPU."""

    name: str
    """Regular expression that matches the name reported by the driver."""
    tflops: Mapping[str, float]
    """Precision (bf16, fp16, fp8, fp4, tf32, fp32) to dense TFLOP/s; fp32 is without tensor cores."""
    source: str
    """Source of the numbers; halved if the source states them with sparsity only."""


_GRACE_BLACKWELL = {"bf16": 2500.0, "fp16": 2500.0, "fp8": 5000.0, "tf32": 1250.0, "fp32": 80.0}
_BLACKWELL = {"bf16": 2250.0, "fp16": 2250.0, "fp8": 4500.0, "tf32": 1125.0, "fp32": 75.0}
_HOPPER_SXM = {"bf16": 989.4, "fp16": 989.4, "fp8": 1978.9, "tf32": 494.7, "fp32": 66.9}
_HOPPER_NVL = {"bf16": 835.5, "fp16": 835.5, "fp8": 1670.5, "tf32": 417.5, "fp32": 60.0}

PEAKS: tuple[GpuPeak, ...] = (
    GpuPeak(
        name=r"\bGB200\b",
        tflops=_GRACE_BLACKWELL | {"fp4": 10000.0},
        source="NVIDIA GB200 NVL72 data sheet, a 72nd of the rack, sparse numbers halved",
    ),
    GpuPeak(
        name=r"\bGB300\b",
        tflops=_GRACE_BLACKWELL | {"fp4": 15000.0},
        source="NVIDIA GB300 NVL72 data sheet, a 72nd of the rack, sparse numbers halved; dense fp4 as stated",
    ),
    GpuPeak(
        name=r"\bB200\b",
        tflops=_BLACKWELL | {"fp4": 9000.0},
        source="NVIDIA HGX B200 data sheet, an eighth of the board, sparse numbers halved",
    ),
    GpuPeak(
        name=r"\bB300\b",
        tflops=_BLACKWELL,
        source="NVIDIA HGX B300 data sheet, an eighth of the board, sparse numbers halved; fp4 differs between sources",
    ),
    GpuPeak(
        name=r"\bH200 NVL\b",
        tflops=_HOPPER_NVL,
        source="NVIDIA H200 data sheet, column NVL, sparse numbers halved",
    ),
    GpuPeak(
        name=r"\bG?H200\b",
        tflops=_HOPPER_SXM,
        source="NVIDIA H200 data sheet, column SXM, sparse numbers halved; the chip is that of the H100 SXM",
    ),
    GpuPeak(
        name=r"\bH100 NVL\b",
        tflops=_HOPPER_NVL,
        source="NVIDIA H100 data sheet, column NVL, sparse numbers halved",
    ),
    GpuPeak(
        name=r"\bH100 PCIe\b",
        tflops={"bf16": 756.0, "fp16": 756.0, "fp8": 1513.0, "tf32": 378.0, "fp32": 51.2},
        source="NVIDIA H100 Tensor Core GPU Architecture (2022), table of H100 PCIe, dense",
    ),
    GpuPeak(
        name=r"\bH[18]00\b",
        tflops=_HOPPER_SXM,
        source="NVIDIA H100 Tensor Core GPU Architecture (2022), table of H100 SXM5, dense",
    ),
    GpuPeak(
        name=r"\bH20\b",
        tflops={"bf16": 148.0, "fp16": 148.0, "fp8": 296.0, "tf32": 74.0, "fp32": 44.0},
        source="NVIDIA H20 product brief, dense",
    ),
    GpuPeak(
        name=r"\bA[18]00\b",
        tflops={"bf16": 312.0, "fp16": 312.0, "tf32": 156.0, "fp32": 19.5},
        source="NVIDIA A100 data sheet (2021), the same for PCIe and SXM, dense",
    ),
    GpuPeak(
        name=r"\bL40S\b",
        tflops={"bf16": 362.0, "fp16": 362.0, "fp8": 733.0, "tf32": 183.0, "fp32": 91.6},
        source="NVIDIA L40S data sheet, dense",
    ),
    GpuPeak(
        name=r"\bL4\b",
        tflops={"bf16": 121.0, "fp16": 121.0, "fp8": 242.5, "tf32": 60.0, "fp32": 30.3},
        source="NVIDIA L4 data sheet, sparse numbers halved",
    ),
    GpuPeak(
        name=r"\bA10\b",
        tflops={"bf16": 125.0, "fp16": 125.0, "tf32": 62.5, "fp32": 31.2},
        source="NVIDIA A10 data sheet, dense",
    ),
    GpuPeak(
        name=r"\bV100-SXM[23]\b",
        tflops={"fp16": 125.0, "fp32": 15.7},
        source="NVIDIA V100 data sheet (2018), column SXM2",
    ),
    GpuPeak(
        name=r"\bRTX 4090\b(?! Laptop| D)",
        tflops={"bf16": 165.2, "fp16": 165.2, "fp8": 330.3, "tf32": 82.6, "fp32": 82.6},
        source="NVIDIA Ada GPU Architecture (2022), appendix A, sums in FP32, dense",
    ),
    GpuPeak(
        name=r"\bMI3(00|25)X\b",
        tflops={"bf16": 1307.4, "fp16": 1307.4, "fp8": 2614.9, "tf32": 653.7, "fp32": 163.4},
        source="AMD Instinct MI300X and MI325X data sheets, without sparsity",
    ),
)


def peak_tflops(gpu_name: str, dtype: str = "bfloat16") -> float | None:
    """Return the dense peak TFLOP/s of a GPU in a precision, or None if it is not known.

    `gpu_name` is the result of torch.cuda.get_device_name(); "H100" without a suffix refers to the SXM variant.
    `dtype` is a short name ("bf16", "fp8", "tf32") or torch's name ("bfloat16", "torch.bfloat16"). The peak of a MIG
    slice is not known, because it has a fraction of the GPU's units.

    Raises:
        ValueError: No GPU has a peak in the precision.
    """
    precision = dtype.lower().removeprefix("torch.")
    precision = _DTYPES.get(precision, precision)
    known = {name for peak in PEAKS for name in peak.tflops} | set(_DTYPES.values())
    if precision not in known:
        near = get_close_matches(dtype.lower(), [*known, *_DTYPES], n=2, cutoff=0.5) or sorted(known)
        raise ValueError(
            f"peak_tflops: {dtype!r} is not a known precision. Use a name such as {' or '.join(near)}."
        )
    if re.search(r"\bMIG\b", gpu_name):
        return None
    for peak in PEAKS:
        if re.search(peak.name, gpu_name, re.IGNORECASE):
            return peak.tflops.get(precision)
    return None


def layer_precision(model: Any) -> str:
    """Return the precision of the matrix products in most layers, whose peak is the reference of MFU.

    Args:
        model: Model section with the fields `fp4`, `fp8` and `params_dtype`.
    """
    if model.fp4 is not None:
        return "fp4"
    return "fp8" if model.fp8 is not None else str(model.params_dtype)
