"""Files of a checkpoint, and how they are read without executing their contents.

`layout.py` has the names, `trackers.py` the files that name the newest checkpoint, `manifest.py` sizes and checksums;
`unpickling.py` reads pickles. `foreign.py` recognizes checkpoints of other programs, of which `legacy.py`,
`megatron_lm.py` and `stored_arguments.py` read Megatron-LM's.
"""
