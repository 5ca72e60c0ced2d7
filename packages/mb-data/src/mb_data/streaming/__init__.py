"""Hugging Face datasets that are streamed: the section, and batches whose position is stored exactly."""
