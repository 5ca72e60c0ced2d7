"""Runs through the executors of NeMo-Run (extra `nemo-run`).

`executor_file.py` reads the executor as a user writes it, `executors.py` submits the run, and `jobs.py` remembers the
jobs of a run folder.
"""
