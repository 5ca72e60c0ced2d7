"""Proof of an exact resume: a run with and without interruption, as commands in separate processes.

`interruption.py` plans the starts, has each one made and compares the records; `start_command.py` makes a start as a
command, and `kill.py` is the callback by which a start ends itself.
"""
