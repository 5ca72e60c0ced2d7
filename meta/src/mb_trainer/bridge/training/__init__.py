"""Modules of `megatron.bridge.training`."""
