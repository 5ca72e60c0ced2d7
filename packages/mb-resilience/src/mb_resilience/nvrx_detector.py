"""The door to nvidia-resiliency-ext (NVRx): its detector of slow GPUs."""

from importlib import import_module
from importlib.util import find_spec

from mb_resilience.nvrx_straggler import NVRxDetector


def nvrx_detector() -> NVRxDetector:
    """Return NVRx's detector, of which a process has one: in `straggler` up to version 0.4, then in `attribution`."""
    name = "nvidia_resiliency_ext.straggler"
    if find_spec(name) is None:
        name = "nvidia_resiliency_ext.attribution.straggler"
    detector: NVRxDetector = import_module(name).NVRxDetector
    return detector
