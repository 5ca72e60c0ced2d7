import pytest

from mb_metrics import peak_tflops
from mb_metrics.flops.peaks import PEAKS


@pytest.mark.parametrize(
    ("gpu", "dtype", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989.4),  # dense, not 1979
        ("NVIDIA H100 80GB HBM3", "torch.float8_e4m3fn", 1978.9),
        ("NVIDIA H100 PCIe", "bf16", 756.0),
        ("NVIDIA H100 NVL", "bf16", 835.5),
        ("NVIDIA H200", "bf16", 989.4),
        ("NVIDIA GH200 480GB", "bf16", 989.4),
        ("NVIDIA H200 NVL", "bf16", 835.5),
        ("NVIDIA H20", "bf16", 148.0),
        ("NVIDIA B200", "fp8", 4500.0),
        ("NVIDIA GB200", "bf16", 2500.0),
        ("NVIDIA GB200", "nvfp4", 10000.0),
        ("NVIDIA GB300", "fp4", 15000.0),
        ("NVIDIA B200", "mxfp8", 4500.0),
        ("NVIDIA B300", "fp4", None),
        ("NVIDIA A100-SXM4-80GB", "torch.bfloat16", 312.0),
        ("NVIDIA A100-PCIE-40GB", "float32", 19.5),
        ("NVIDIA A100-SXM4-80GB", "fp8", None),  # it has none
        ("NVIDIA L40S", "bf16", 362.0),
        ("NVIDIA L4", "bf16", 121.0),
        ("NVIDIA A10", "bf16", 125.0),
        ("Tesla V100-SXM2-32GB", "fp16", 125.0),
        ("Tesla V100-SXM2-32GB", "bf16", None),
        ("NVIDIA GeForce RTX 4090", "bf16", 165.2),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "bf16", None),
        ("AMD Instinct MI300X", "bf16", 1307.4),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "bf16", None),  # a slice
        ("NVIDIA L40", "bf16", None),
        ("cpu", "bf16", None),
    ],
)
def test_dense_peaks(gpu, dtype, tflops):
    assert peak_tflops(gpu, dtype) == tflops


@pytest.mark.parametrize("peak", PEAKS, ids=lambda peak: peak.name)
def test_every_peak_has_a_source_and_fp8_is_twice_bf16(peak):
    assert peak.source
    if "fp8" in peak.tflops:
        assert peak.tflops["fp8"] == pytest.approx(2 * peak.tflops["bf16"], rel=0.02)
