"""Sinks that write records to a destination, a module for each.

`sink.py` is the interface, `background.py` writes in a thread, `filter.py` selects, and `build.py` opens those that a
section names. `tracker_run.py` and `host_run.py` find the run of a tracker.
"""
