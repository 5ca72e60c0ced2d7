"""Evaluation of the model during training: when it is due (`validation.py`), and how it runs (`evaluate.py`)."""
