"""One recorded step again, from the checkpoint before it."""
