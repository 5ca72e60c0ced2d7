"""Text files to token files: documents are read, tokenized and written as `.bin`/`.idx` pairs.

`sources.py` and `documents.py` read (`document_rows`, `arrow_tables`, `compressed`), `build.py` and `workers.py`
tokenize, `indexed.py` writes and `reader.py` reads. `corpus.py` does it all for the corpus of a run.
"""
