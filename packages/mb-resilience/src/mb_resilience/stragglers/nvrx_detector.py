"""Straggler detector of nvidia-resiliency-ext (NVRx), which this module imports."""

from importlib import import_module
from importlib.util import find_spec

from mb_resilience.stragglers.nvrx_straggler import NVRxDetector


def nvrx_detector() -> NVRxDetector:
    """Return NVRx's detector class, which holds process-wide state."""
    # NVRx moved the module from `straggler` to `attribution.straggler` after version 0.4.
    name = "nvidia_resiliency_ext.straggler"
    if find_spec(name) is None:
        name = "nvidia_resiliency_ext.attribution.straggler"
    detector: NVRxDetector = import_module(name).Detector
    return detector
