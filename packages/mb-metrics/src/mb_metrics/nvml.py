"""The door to NVML, NVIDIA's management library: the energy that a GPU has used."""

import pynvml  # type: ignore[import-untyped,import-not-found,unused-ignore]

from mb_metrics.energy import EnergyReader


def nvml_reader(uuid: str) -> EnergyReader:
    """Return what reads the energy that a GPU has used since its driver was loaded, in joules.

    Args:
        uuid: Of the GPU, as NVML names it: "GPU-" and torch.cuda.get_device_properties(device).uuid. Its number would
            not do: CUDA_VISIBLE_DEVICES renumbers GPUs for torch and not for NVML.

    Raises:
        pynvml.NVMLError: there is no driver, no such GPU, or one that does not measure energy.
    """
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)

    def read() -> float:
        joules: float = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000.0
        return joules

    read()
    return read
