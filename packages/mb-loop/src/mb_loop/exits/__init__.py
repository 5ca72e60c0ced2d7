"""Exits of the loop before its last step, agreed by all ranks.

`stop_signal.py` and `early_stopping.py` request, `exit_conditions.py` decides after each step in a fixed order, and
`outcome.py` is what the loop returns.
"""
