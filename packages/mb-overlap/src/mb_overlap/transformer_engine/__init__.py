"""Transformer Engine's user buffers: their settings, the arguments for its versions, and their start."""
