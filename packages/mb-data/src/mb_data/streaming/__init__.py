"""Hugging Face datasets that are streamed.

`config.py` is the section, and `hugging_face.py` yields batches and stores their exact position.
"""
