"""Parts of Megatron Core that need a GPU, on the CPU: layers, state-space scans, FSDP, and patches of functions."""
