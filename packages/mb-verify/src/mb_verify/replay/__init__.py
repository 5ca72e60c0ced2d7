"""One recorded step again, from the checkpoint before it: `step.py` runs and compares, `text.py` prints."""
