"""Weights in and out of folders in Hugging Face's form: `shapes` (config.json), `names`, `load`, `save`."""
