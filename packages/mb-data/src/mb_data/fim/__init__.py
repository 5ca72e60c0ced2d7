"""Fill-in-the-middle data on Megatron Core's GPT datasets.

`config.py` is the section, `rules.py` check it, `build.py` builds the datasets of a run, and `dataset.py` reorders
the documents of each sample.
"""
