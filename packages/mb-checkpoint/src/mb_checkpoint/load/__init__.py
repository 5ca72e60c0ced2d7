"""Loading a checkpoint, from the configured sources to the restored run.

`sources.py` orders the sources, `select.py` chooses a checkpoint, `shape_check.py` compares it with the model, and
`restore.py` reads it. `load.py` is the sequence; `run_status.py` and `completion.py` answer the same before a run.
"""
