"""How long a step takes: the work of a microbatch at the speeds of a GPU, times coefficients fitted to published runs.

`prediction` is the way through it: `work` counts what each layer does, `step` adds the terms of a step up, with the
coefficients of `fit.json`, which published runs determine.
"""
