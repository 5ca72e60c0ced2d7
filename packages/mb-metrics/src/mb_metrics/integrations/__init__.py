"""Classes for the loggers and callbacks of other training libraries.

`step_logger.py` collects the metrics of a step from several calls; `accelerate.py`, `lightning.py`, `torchtitan.py`
and `transformers.py` are built on it.
"""
