"""Energy reader for the current GPU of this process. Adapter for torch."""

import logging
from importlib import import_module
from typing import Any

import torch

from mb_metrics.recorder.energy import EnergyReader

_logger = logging.getLogger(__name__)


def current_gpu_energy() -> EnergyReader | None:
    """Return an energy reader for the current GPU, or None, with a warning, if energy cannot be read.

    Requires a GPU and the package nvidia-ml-py.
    """
    if not torch.cuda.is_available():
        _logger.warning("energy is not measured: no GPU is available")
        return None
    # not by index: CUDA_VISIBLE_DEVICES renumbers GPUs for torch, but not for NVML
    uuid = f"GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}"
    try:
        nvml: Any = import_module("pynvml")  # may be missing
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)

        def read() -> float:
            joules: float = nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000.0
            return joules

        read()
    except ModuleNotFoundError:
        _logger.warning(
            "energy is not measured: nvidia-ml-py is not installed (pip install mb-metrics[energy])"
        )
        return None
    except Exception as error:  # noqa: BLE001 - a driver error must not end training
        _logger.warning("energy is not measured: %r", error)
        return None
    return read
