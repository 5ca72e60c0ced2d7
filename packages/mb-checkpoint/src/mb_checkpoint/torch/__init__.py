"""Checkpoints of any PyTorch loop, without Megatron Core.

`checkpointer.py` saves and loads; `state.py` and `parts.py` collect what a run consists of, and `optimizer.py` names
the state of its optimizers.
"""
