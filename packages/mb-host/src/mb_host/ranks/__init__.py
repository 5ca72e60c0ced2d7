"""N ranks of a function as processes of this machine, with their results or the error of one.

`pool.py` is called; `process.py` starts a rank with multiprocessing's fork server, which imports once, sends it
`messages.py` and collects outcomes, or raises `errors.py`; `rank.py` is the program of the rank.
"""
