"""Ranks on this machine: `local_ranks.py` starts N processes through torch elastic, `forked_ranks.py` by fork.

They find each other by `rank_store.py` and `loopback.py`; `failures.py` finds and prints one cause for all ranks, and
`left_ranks.py` finds those that ended silently.
"""
