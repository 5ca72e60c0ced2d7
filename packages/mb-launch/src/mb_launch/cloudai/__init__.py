"""Launches through NVIDIA CloudAI.

`definition.py` is the file of a test and `constraints.py` its conditions; `command.py` writes the command line of
Megatron-Bridge's launcher, `slurm_run.py` a job of this package instead. `outcome.py` reads the result from the log.
"""
