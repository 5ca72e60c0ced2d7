"""Work between steps.

After a step and its evaluation `periodic.py` runs what is due: `replicas.py` compares weights, `manual_gc.py`
collects garbage. `checkpoint_saver.py` is called before a step, to finish background saves, and at its end, to save.
"""
