"""Sinks that write records to a destination, a module for each.

`sink.py` is the interface; its sinks distribute records to several others, and select some. `background.py` wraps a
sink and writes in a thread. `build.py` opens the sinks that a section names.

The sinks: `console.py`, `terminal.py` and `notebook.py` for people; `jsonl.py` and `tensorboard.py` for files;
`wandb.py`, `mlflow.py` and `comet.py` for trackers. `append_file.py` has files that survive a full disk,
`tracker_run.py` the run of a tracker that is continued after a resume, or that the calling program has opened.
"""
