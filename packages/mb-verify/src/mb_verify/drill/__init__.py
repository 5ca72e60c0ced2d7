"""A run under injected faults, compared with the undisturbed run.

`plan.py` chooses the faults. `run.py` starts each run (`start_process.py`), follows the steps that it records
(`progress.py`) and injects the fault, from outside (`fault_injectors.py`) or by a callback in the process
(`fault_callback.py`). `report.py` compares the results with those of the undisturbed run, and `text.py` prints them.
"""
