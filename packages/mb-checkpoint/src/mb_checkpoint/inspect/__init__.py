"""Inspection of checkpoints without a model, in a single process.

`inspection.py` lists, describes and verifies; `integrity.py` searches for the newest intact one; `difference.py`
compares two; `trackers.py` checks the files that name the latest; `best.py` finds the best by a metric.
"""
