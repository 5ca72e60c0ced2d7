"""Saving a checkpoint, from the state of a run to a committed folder.

`save.py` lists the steps: `state.py` collects what its layout stores, `plan.py` stages it, and writes it at once or
passes it to the writer process (`async_save`, `background_writer`, `worker`), `finalize.py` and `commit.py` make it
visible, and `retention.py` deletes old ones. `saver.py` has the save of a run that is in flight.
"""
