"""Batches of one rank: which samples a step has, in which order, from which position.

`samplers.py` assigns samples to ranks, `loaders.py` and `batch_iterators.py` yield batches, `batch_padding.py` pads
them. `step_batch.py` finds the samples of one step; `validation_sets.py` and `last_validation.py` those of an
evaluation. `document_parts.py` finds the documents of a sample. `mapped_files.py` is about the data
files that stay mapped into memory.
"""
