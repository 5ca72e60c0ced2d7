"""Profiling of a window of steps.

`config.py` has the sections and `rules.py` check them; `window.py` opens and closes the window, and starts the
profilers of `torch_profilers.py`. `tensor_inspect.py` prepares statistics of tensors before the model is built.
"""
