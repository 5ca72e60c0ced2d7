"""Recording of a step, on any training loop and without waiting for the device.

`metrics.py` is the recorder; read the numbered steps at its head first. `recorded_steps.py` has a step on its way to
the host and `tensors.py` its device scalars; `interval.py` has the rates of a log interval, and `record.py` what sinks
receive. The other files measure: `clock.py` time, `memory.py` and `memory_sampler.py` memory, `energy.py` energy,
`auxiliary_losses.py` losses of experts and multi-token prediction. `bridge_api.py` has functions of Megatron-Bridge.
"""
