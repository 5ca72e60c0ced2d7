"""Modules of `megatron.bridge.peft`."""
