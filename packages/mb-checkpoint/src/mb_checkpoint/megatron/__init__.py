"""Sharded state of models and optimizers of Megatron Core, for `mb_checkpoint.mcore`.

`groups.py`, `plan.py` and `pieces.py` serve every save; `model.py`, `optimizer.py` and `scheduler.py` are the parts of
the state. The others each adapt one kind of optimizer or sharding: chained optimizers, main parameters, remainders,
step counts, torch's optimizers, Megatron-FSDP (`fsdp`), and tensors that are sharded unevenly (`shards`).
"""
