"""Detection of slow ranks and GPUs.

`detection.py` and `torch_timing.py` time the work between collectives, `report.py` compares ranks; `nvrx_straggler.py`
uses nvidia-resiliency-ext. `detectors.py` builds what the sections request.
"""
