"""Tuned user-buffer settings by GPU and model shape: `table.py`, and `search.py` for the nearest entry."""
