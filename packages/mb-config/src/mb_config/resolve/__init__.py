"""Fields that follow from others: `resolver.py` computes them and returns each change with its reason.

One file for each source of values (precision, overlap, model, FSDP, saves); `state.py` refuses to replace what the user
set.
"""
