"""CUDA calls of torch on the CPU: devices, streams, tensor factories, random numbers, reproducible arithmetic."""
