"""Classes for the loggers and callbacks of other training libraries, one file for each.

They are built on `step_logger.py`, which collects the metrics of a step from several calls.
"""
