"""Modules of `megatron.bridge`.

A recipe written for Megatron-Bridge moves by replacing `megatron.bridge` with `mb_trainer.bridge` in its imports. The
names are those of the trainer's packages; `_names.py` lists where each one is.
"""
