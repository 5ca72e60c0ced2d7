"""Implementations of the commands: functions that take parsed arguments and return an exit code.

One file a command of `mb_trainer.cli`, except `errors.py`, the end of a command that fails, and the settings that a
command needs besides its own: `baseline.py` (report), `index_request.py` (data index), `megatron_run.py` (a run that
takes over from Megatron-LM).
"""
