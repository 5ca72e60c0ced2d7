"""Modules of `megatron.bridge.data.datasets`."""
