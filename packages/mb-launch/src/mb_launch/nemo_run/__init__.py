"""Runs through the executors of NeMo-Run (extra `nemo-run`)."""
