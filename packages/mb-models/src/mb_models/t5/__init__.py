"""T5 models, an encoder and a decoder.

`config.py` is the section, `rules.py` check it, and `provider.py` builds the chunks, with batches and forward step.
"""
