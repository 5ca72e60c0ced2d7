"""Modules of `megatron.bridge.models.mamba`."""
