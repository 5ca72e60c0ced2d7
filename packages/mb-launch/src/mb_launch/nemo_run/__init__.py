"""nemo_run."""
