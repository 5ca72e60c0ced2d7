"""Which of many settings are possible, and which of these are best.

`run` is the way from a model, GPUs and tokens to the best layouts: `layouts` proposes them, `points` ranks those that
were planned. `grid` applies rules to every combination of any settings, `chart` draws the result.
"""
