"""Tokenizers: one interface (`base.py`), and an adapter for each library.

`config.py` is the section and `rules.py` its rules; `loading.py` opens a tokenizer from the section or a path,
`saved_tokenizer.py` from a checkpoint, `run_tokenizer.py` for a run.
"""
