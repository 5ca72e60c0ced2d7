"""The energy reader of the GPU that this process uses, where there is one. A door to torch."""

import logging
from importlib import import_module

import torch

from mb_metrics.energy import EnergyReader

_logger = logging.getLogger(__name__)


def current_gpu_energy() -> EnergyReader | None:
    """Return what reads the energy of the current GPU; None, with a warning, where it cannot be read.

    It needs a GPU and the package nvidia-ml-py.
    """
    if not torch.cuda.is_available():
        _logger.warning("energy is not measured: there is no GPU")
        return None
    uuid = f"GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}"
    try:
        reader: EnergyReader = import_module("mb_metrics.nvml").nvml_reader(uuid)  # pynvml may be missing
    except ModuleNotFoundError:
        _logger.warning(
            "energy is not measured: nvidia-ml-py is not installed (pip install mb-metrics[energy])"
        )
        return None
    except Exception as error:  # noqa: BLE001 - whatever the driver says, training goes on
        _logger.warning("energy is not measured: %r", error)
        return None
    return reader
