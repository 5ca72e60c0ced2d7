"""Data sets in shards: builds that resume after an interruption, on one machine or many, read as one pair.

`plan.py` cuts the inputs, and records cut and options, `shard.py` builds one shard, `engines.py`, `ray.py` and
`slurm.py` run it for all, and `build.py` drives them and merges the index. `manifest.py` and
`tokens.py` read the result, and `origin.py` finds the input of a document again. `files.py` writes files completely or
not at all.
"""
