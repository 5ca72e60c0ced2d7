"""Modules of `megatron.bridge.training.utils`."""
