"""One training step: `step.py` runs microbatches forward and backward, reduces, clips, and updates.

`forward_backward.py` selects the schedule, `losses.py` reduces losses and `loss_checks.py` and
`deferred_loss_check.py` check them, `microbatches.py` counts, `optimizers.py` and `optimizer_sync.py` update, and
`result.py` is what a step returns.
"""
