"""CUDA calls of torch on the CPU, as `mb_host.install` replaces them.

`device.py`, `streams.py`, `tensors.py`, `random.py` and `compile.py` replace functions of torch. The others change
the process: `reproducibility.py` and `matrix_products.py` its arithmetic, `gloo_device.py` its process groups,
`signal_stack.py` its signal handlers.
"""
