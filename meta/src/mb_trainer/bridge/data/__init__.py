"""Modules of `megatron.bridge.data`."""
