"""One training step: `step.py` runs microbatches forward and backward, reduces, clips, and updates.

`microbatches.py` counts, `forward_backward.py` runs the passes by a schedule, such as that of `schedule.py`, with the
user's `forward_step.py`, `losses.py` reduces the losses and `loss_checks.py` checks them, `optimizers.py` updates, and
`result.py` is what a step returns. `hooks.py` gathers parameters, `attention_logits.py` reads and clips.
"""
