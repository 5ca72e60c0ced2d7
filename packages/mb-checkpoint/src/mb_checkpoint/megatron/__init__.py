"""Sharded state of models and optimizers of Megatron Core, for `mb_checkpoint.mcore`.

`groups.py` and `plan.py` serve every save. The others each adapt one kind of optimizer or sharding: chained optimizers,
main parameters, remainders, step counts, torch's optimizers, Megatron-FSDP (`fsdp`, `shards`) and FSDP2
(`local_shards`).
"""
