"""Record of a run: what each rank holds and computes at each step.

`recorder.py` is the callback, `run_record.py` the file, `torch_state.py` what is recorded of a plain loop, and
`environment.py` requests a recording from outside.
"""
