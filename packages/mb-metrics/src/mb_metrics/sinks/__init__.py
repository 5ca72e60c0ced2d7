"""Sinks that write records to a destination, a module for each.

`sink.py` is the interface, and distributes records to several sinks. `background.py` and `filter.py` wrap a sink: one
writes in a thread, one selects. `build.py` opens the sinks that a section names.

The sinks: `console.py` (with the lines of `short_line.py`), `terminal.py` and `notebook.py` for people; `jsonl.py` and
`tensorboard.py` for files; `wandb.py`, `mlflow.py` and `comet.py` for trackers. `append_file.py` and `line_file.py` are
files that survive a full disk. `tracker_run.py` continues the run of a tracker after a resume, `host_run.py` uses the
run that the calling program has opened.
"""
