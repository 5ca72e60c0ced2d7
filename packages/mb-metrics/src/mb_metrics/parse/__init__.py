"""Parsers that convert logs of trainers to metrics records.

`log.py` parses a complete log; `megatron.py` and `torchtitan.py` parse its lines.
"""
