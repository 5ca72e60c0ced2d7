"""Adapter for NVML, NVIDIA's management library: energy used by a GPU."""

import pynvml  # type: ignore[import-untyped,import-not-found,unused-ignore]

from mb_metrics.recorder.energy import EnergyReader


def nvml_reader(uuid: str) -> EnergyReader:
    """Return a function that reads the energy used by a GPU since its driver was loaded, in joules.

    Args:
        uuid: UUID of the GPU in NVML's format: "GPU-" and torch.cuda.get_device_properties(device).uuid. A device
            index is not sufficient: CUDA_VISIBLE_DEVICES renumbers GPUs for torch, but not for NVML.

    Raises:
        pynvml.NVMLError: there is no driver, no such GPU, or the GPU does not measure energy.
    """
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)

    def read() -> float:
        joules: float = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000.0
        return joules

    read()
    return read
