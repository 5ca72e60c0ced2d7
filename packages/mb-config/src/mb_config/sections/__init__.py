"""Sections that every Megatron trainer shares, one file per topic."""
