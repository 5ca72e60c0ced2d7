"""Benchmark of a training run: step time, throughput, MFU, peak memory and what each step makes the host do.

A run is measured by the callback `mb_metrics.bench.recorder.BenchRecorder`. `mb_metrics.bench.request` passes the
request to measure from the program that starts a run to its processes. No torch outside `recorder`.
"""
