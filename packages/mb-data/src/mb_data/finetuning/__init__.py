"""Fine-tuning data: JSON lines to samples with a loss mask, and packs of them.

`config.py`, `options.py` and `rules.py` describe it; `files.py` finds the splits, `samples.py` tokenizes,
`split_samples.py` caches, `packing.py` packs (`first_fit`, `pack_files`), and `dataset.py` is what a loader reads.
"""
