"""A run under injected faults, compared with the undisturbed run.

`plan.py` chooses the faults, `fault_injectors.py` and `fault_callback.py` inject them, `run.py` drives the runs, and
`report.py` compares.
"""
