"""Hybrid models with Mamba, attention, MLP and expert layers.

`config.py` is the section with the pattern of layers, `rules.py` check it, and `provider.py` builds the chunks.
"""
