"""N ranks of a function as processes of this machine, with their results or the error of one.

`run.py` is called; `server.py` starts a process that imports once (`server_main.py`) and forks ranks (`main.py`),
`process.py` and `messages.py` talk to them, and `results.py` collects `outcomes.py`.
"""
