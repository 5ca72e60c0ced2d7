"""A GPU has one name: all packages parse the output of nvidia-smi equally, and none accepts an unknown name."""

from pathlib import Path

import pytest

import mb_overlap
from mb_config import UnknownGpuError
from mb_config.rules.hardware import gpu_short_name
from mb_launch import GpuSources
from mb_metrics import peak_tflops
from mb_overlap.env_vars import generation
from mb_schema.gpu_capabilities import capability
from mb_trainer.run.preflight import first_gpu

PRINTED = {
    "NVIDIA H100 80GB HBM3": "h100",
    "NVIDIA H100 PCIe": "h100",
    "NVIDIA H100 NVL": "h100",
    "H100-SXM5-80GB": "h100",
    "NVIDIA H200": "h200",
    "NVIDIA H20": "h20",
    "NVIDIA GH200 480GB": "gh200",
    "NVIDIA A100-SXM4-80GB": "a100",
    "NVIDIA A800-SXM4-80GB": "a800",
    "NVIDIA L40S": "l40s",
    "NVIDIA L4": "l4",
    "NVIDIA A10": "a10",
    "NVIDIA B200": "b200",
    "NVIDIA GB200": "gb200",
    "NVIDIA B300 SXM6 AC": "b300",
}


@pytest.mark.parametrize(("printed", "short"), PRINTED.items())
def test_all_packages_parse_the_output_of_nvidia_smi_equally(
    printed: str, short: str, tmp_path: Path
) -> None:
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "information").write_text(f"Model: \t\t {printed}\nGPU UUID: GPU-0-a100-0\n")
    read = first_gpu({}, sources=GpuSources(driver=tmp_path))
    assert (gpu_short_name(printed), read) == (short, short)
    assert (capability(printed), generation(printed)) == (capability(short), generation(short))
    assert (capability(short) or ())[:1] == (generation(short),)
    assert peak_tflops(printed) is not None


@pytest.mark.parametrize("name", ["h1000", "abacus", "NVIDIA H100 80GB HBM3 MIG 1g.10gb"])
def test_unknown_names_are_read_by_no_package(name: str) -> None:
    with pytest.raises(UnknownGpuError, match="is not a known GPU"):
        gpu_short_name(name)
    assert (capability(name), generation(name), peak_tflops(name)) == (None, None, None)
    with pytest.raises(mb_overlap.UnknownGpuError):
        mb_overlap.recommended_env_vars(gpu=name)
