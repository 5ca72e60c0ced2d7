"""Comparison of two records, bit for bit.

`records.py` compares and returns a verdict, `diagnosis.py` finds the cause of a difference, `verdict_text.py` prints.
"""
