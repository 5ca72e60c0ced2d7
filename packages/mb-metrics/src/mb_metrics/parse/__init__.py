"""Parsers that convert logs of trainers to metrics records.

`log.py` parses a complete log; `megatron.py`, `step_time.py` and `torchtitan.py` parse its lines.
"""
