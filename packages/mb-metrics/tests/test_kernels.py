"""The table of kernels in a trace, whose times are counted by hand."""

import json

import pytest

from mb_metrics.bench.kernels import kernel_table


def event(category, name, start, duration, thread=1):
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": duration, "tid": thread}


def test_times_gaps_and_the_callers_of_waits():
    events = [
        event("kernel", "gemm", 100.0, 50.0, thread=7),
        event("kernel", "gemm", 140.0, 30.0, thread=8),  # 20 of it at the same time as the first
        event("gpu_memcpy", "Memcpy DtoD", 200.0, 10.0, thread=7),  # after a gap of 30
        event("kernel", "adam", 215.0, 5.0, thread=7),  # after a gap of 5
        event("python_function", "train.py(1): train", 0.0, 500.0),
        event("python_function", "clock.py(69): elapsed", 10.0, 80.0),
        event("python_function", "other.py(1): ended", 11.0, 2.0),
        event("python_function", "thread.py(1): other", 0.0, 500.0, thread=2),
        event("cuda_runtime", "cudaEventSynchronize", 20.0, 40.0),
        event("cuda_runtime", "cudaLaunchKernel", 95.0, 3.0),
        {"ph": "i", "cat": "kernel", "name": "an instant", "ts": 0.0},
    ]
    assert kernel_table({"traceEvents": events}, steps=2) == {
        "steps": 2,
        "span_ms": 0.12,
        "busy_ms": 0.085,
        "gaps": {"count": 1, "total_ms": 0.03, "largest_us": [30.0]},
        "kernels": [
            {"name": "gemm", "count": 2, "total_ms": 0.08, "mean_us": 40.0},
            {"name": "Memcpy DtoD", "count": 1, "total_ms": 0.01, "mean_us": 10.0},
            {"name": "adam", "count": 1, "total_ms": 0.005, "mean_us": 5.0},
        ],
        "calls": {"cudaEventSynchronize": 1, "cudaLaunchKernel": 1},
        "waits": [
            {
                "call": "cudaEventSynchronize",
                "count": 1,
                "callers": ["clock.py(69): elapsed", "train.py(1): train"],
            }
        ],
    }


def test_a_trace_of_torch_without_a_gpu_has_no_kernels(tmp_path):
    torch = pytest.importorskip("torch")
    from mb_metrics.bench.recorder import CallCounter

    file = tmp_path / "trace.json"
    with CallCounter(trace=file):
        torch.ones(4).sum().item()
    found = kernel_table(json.loads(file.read_text()), steps=1)
    assert (found["kernels"], found["waits"], found["busy_ms"]) == ([], [], 0.0)
