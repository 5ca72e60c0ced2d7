"""Megatron Core's GPT datasets: their blend, and the indices that they need before the first step.

`blend.py` parses the paths, `sample_counts.py` the sizes, `index_build.py` and `sample_indices.py` build,
`index_record.py`, `cached_indices.py` and `fingerprint.py` reuse, and `recorded_blend.py` opens what was built.
`mb_data.mcore` is the adapter.
"""
