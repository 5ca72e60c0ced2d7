"""Floating-point operations of a token, from the shape of a model, and the peaks of GPUs.

`model_shape.py` reads a configuration, `layers.py` counts, `model.py` sums up; `per_token.py` has the
parts, and `peaks.py` what GPUs reach.
"""
