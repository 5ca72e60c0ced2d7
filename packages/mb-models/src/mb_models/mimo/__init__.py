"""Vision-language models: section, rules, provider and batches.

Per-module parallelism is in `modules.py`, `groups.py` and `optimizer.py`.
"""
