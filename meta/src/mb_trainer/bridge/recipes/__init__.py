"""Modules of `megatron.bridge.recipes`."""
