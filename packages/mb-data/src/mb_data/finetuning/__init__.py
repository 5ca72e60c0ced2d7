"""Fine-tuning data: JSON lines to samples with a loss mask, and packs of them.

`config.py` and `options.py` are the section, `rules.py` and `packing_rules.py` its rules. `build.py` builds the
datasets: `files.py` finds the files of a split, `samples.py` tokenizes them, `split_samples.py` packs them with
`first_fit.py` (or `bridge_packs.py` reads packs of Megatron-Bridge); a loader reads a dataset of `dataset.py`,
`packing.py` or `blend.py`.
"""
