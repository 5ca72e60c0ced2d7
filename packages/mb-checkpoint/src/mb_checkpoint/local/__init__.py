"""Non-persistent checkpoints on the disk of each node.

`checkpoints.py` saves and loads them; `nvrx.py` is the store of nvidia-resiliency-ext, which returns the records of
`state.py`.
"""
