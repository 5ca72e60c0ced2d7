"""Crash-consistent checkpoints for Megatron trainers."""
