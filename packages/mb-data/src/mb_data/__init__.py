"""Datasets, blends, samplers, tokenizers and exact position for Megatron trainers."""
