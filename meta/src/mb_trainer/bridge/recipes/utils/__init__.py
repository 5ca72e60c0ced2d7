"""Modules of `megatron.bridge.recipes.utils`."""
