"""A check of a configuration: as written, resolved, and against the facts of a machine, all problems at once.

`run.py` is the sequence, `problems.py` applies rules, `facts.py` has what no section contains.
"""
