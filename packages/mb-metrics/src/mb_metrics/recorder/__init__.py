"""Recording of a step, on any training loop and without waiting for the device.

`metrics.py` is the recorder. `tensors.py` holds device scalars until the log interval, `recorded_steps.py` the rows on
their way to the sinks, `record.py` what sinks receive. The other files measure: time, throughput, memory, energy,
experts.
"""
