"""Copies of checkpoints beyond the disk that a run saves to.

`storage.py` is the interface, `fsspec.py` its implementation for object storage. `checkpoints.py` copies, lists and
deletes; `owner.py` compares the run; `uploader.py` and `mirror.py` serve a run, `fetch.py` all its ranks.
"""
