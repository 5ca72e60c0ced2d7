"""Sections that every Megatron trainer shares, one file per topic.

In the order of a run: `startup.py` (process groups, random numbers), `training.py`, `optimizer.py` with
`optimizer_overrides.py` and `scheduler.py`, `ddp.py`, and `precision.py`, which resolving copies to the others.
"""
