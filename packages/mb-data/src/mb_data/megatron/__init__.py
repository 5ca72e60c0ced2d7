"""Megatron Core's GPT datasets: their blend, and the indices that they need before the first step.

`mb_data.mcore` builds the datasets, with the parts in this folder: `blend.py` parses the paths, `tokenizer.py` and
`conversion.py` convert the tokenizer and the section to Megatron's, `fingerprint.py` names the folder of the indices by
the data, `cached_indices.py` checks the files in it, `index_build.py` builds what is
missing, and `gpt_dataset.py` is the dataset. A later start reads the record of the build (`index_record.py`) and opens
each dataset at its first sample (`recorded_blend.py`). `sample_counts.py` computes how many samples a run draws,
and `sample_indices.py` builds the indices ahead of a run.
"""
