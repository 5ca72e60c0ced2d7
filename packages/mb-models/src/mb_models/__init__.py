"""Megatron Core models ready to train: configs, providers, batches and forward steps."""
