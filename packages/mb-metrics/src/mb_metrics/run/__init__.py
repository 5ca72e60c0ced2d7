"""Metrics and events of a run, from the callbacks of a training loop to its run folder.

`training_metrics.py` is the callback for steps, `event_recorder.py` for events; `recorders.py` builds them from
`sections.py`. `folder.py` names the files, `rank_console.py` prints, and `megatron_log.py` takes Megatron's own calls.
"""
