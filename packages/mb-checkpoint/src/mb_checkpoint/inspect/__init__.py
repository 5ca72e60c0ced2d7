"""Inspection of checkpoints without a model, in a single process.

`inspection.py` lists, describes and verifies checkpoints, and checks the files that name the latest; `integrity.py`
searches for the newest intact one; `difference.py` compares two; `best.py` finds the best by a metric.
"""
