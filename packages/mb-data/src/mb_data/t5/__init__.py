"""Span corruption for T5.

`config.py` is the section, whose sizes `span_corruption.py` computes; `rules.py` check it, `build.py` builds the
datasets of a run, and `dataset.py` corrupts each sample.
"""
