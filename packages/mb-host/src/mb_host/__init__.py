"""Megatron Core on a machine without a GPU: the host stands in for CUDA."""
