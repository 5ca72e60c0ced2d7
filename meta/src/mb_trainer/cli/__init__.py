"""Command line `mb`: arguments, help and exit codes. `mb_trainer.commands` implements the commands.

`app.py` mounts everything; `train.py`, `proof.py`, `plans.py`, `text.py`, `weights.py` and `configs.py` have a group of
commands each, and `options.py` what they share. Each command imports its implementation when it is called.
"""
