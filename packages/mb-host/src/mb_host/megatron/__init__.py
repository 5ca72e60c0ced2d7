"""Parts of Megatron Core that need a GPU, on the CPU.

`patches.py` corrects functions when their module is imported, and `kernels.py`, `ssm_scan.py`, `grouped_experts.py`,
`fsdp.py` and `mimo_bridge.py` stand in for what is missing then. Layers for the CPU come later, when a model is
built: `families.py` selects those of `layers.py`, `hybrid.py` or `t5.py`. `megatron_lm.py` is for Megatron-LM's own
training.
"""
