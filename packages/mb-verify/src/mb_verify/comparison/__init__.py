"""Comparison of two records, bit for bit, and its verdict."""
