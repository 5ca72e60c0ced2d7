"""Transformer Engine's user buffers, from settings to their start.

`buffer_settings.py` checks the settings, `te_versions.py` knows what each release takes, `arguments.py` converts, and
`user_buffers.py` starts them through `te.py`, which alone imports Transformer Engine.
"""
