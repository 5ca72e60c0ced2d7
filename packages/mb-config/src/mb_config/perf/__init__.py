"""Settings of a fast run by kind of GPU, as `perf=h100` selects them.

`names.py` reads the value of the field, `target.py` is the configuration and the GPU that conditions read,
`settings.py` has the settings, each with its condition, and `resolve_perf.py` applies them. `candidates.py` has
settings that only a measurement decides, for `mb tune`.
"""
