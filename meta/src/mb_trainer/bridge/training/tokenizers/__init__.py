"""Modules of `megatron.bridge.training.tokenizers`."""
