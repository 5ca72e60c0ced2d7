"""Tuned user-buffer settings by GPU and model shape: the table, and the search for the nearest entry."""
