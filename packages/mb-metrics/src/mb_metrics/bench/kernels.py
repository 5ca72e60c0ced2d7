"""Table of the kernels in a trace of torch's profiler: counts, times, gaps, and calls that wait. No torch."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

WAITS = frozenset(
    {"cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy", "cudaMemset"}
)
"""Calls that return when the GPU has finished something."""
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
"""Categories of what the GPU executes."""
OF_HOST = ("cuda_runtime", "cuda_driver")
PYTHON = "python_function"
LONG_GAP = 20.0
"""Microseconds from which a gap between kernels is counted."""
_FRAMES, _LARGEST = 6, 5

Event = Mapping[str, Any]


def kernel_table(trace: Mapping[str, Any], *, steps: int) -> dict[str, Any]:
    """Return the table of a trace in the format of Chrome, as `torch.profiler` exports it.

    Args:
        trace: Content of the file. With stacks, the waits have their callers in Python.
        steps: Steps in the trace.
    """
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    device = sorted(
        (event for event in events if event.get("cat") in ON_DEVICE), key=lambda event: event["ts"]
    )
    host = [event for event in events if event.get("cat") in OF_HOST]
    times: dict[str, list[float]] = defaultdict(list)
    for event in device:
        times[event["name"]].append(event["dur"])
    by_total = sorted(times.items(), key=lambda item: -sum(item[1]))
    return {
        "steps": steps,
        **_gaps(device),
        "kernels": [
            {
                "name": name,
                "count": len(durations),
                "total_ms": round(sum(durations) / 1e3, 3),
                "mean_us": round(sum(durations) / len(durations), 2),
            }
            for name, durations in by_total
        ],
        "calls": dict(Counter(event["name"] for event in host).most_common()),
        "waits": _waits(events, [event for event in host if event["name"] in WAITS]),
    }


def _gaps(device: Sequence[Event]) -> dict[str, Any]:
    """Return the time from the first to the last kernel, in how much of it one runs, and the gaps."""
    if not device:
        return {"span_ms": 0.0, "busy_ms": 0.0, "gaps": {"count": 0, "total_ms": 0.0, "largest_us": []}}
    gaps, busy, end = [], 0.0, device[0]["ts"]
    for event in device:
        start, stop = event["ts"], event["ts"] + event["dur"]
        if start > end:
            gaps.append(start - end)
        busy += max(0.0, stop - max(start, end))
        end = max(end, stop)
    long = sorted((gap for gap in gaps if gap >= LONG_GAP), reverse=True)
    return {
        "span_ms": round((end - device[0]["ts"]) / 1e3, 3),
        "busy_ms": round(busy / 1e3, 3),
        "gaps": {"count": len(long), "total_ms": round(sum(long) / 1e3, 3), "largest_us": long[:_LARGEST]},
    }


def _waits(events: Sequence[Event], waits: Sequence[Event]) -> list[dict[str, Any]]:
    """Return the calls that wait for the GPU, with the functions of Python around each, innermost first."""
    functions: dict[Any, list[Event]] = defaultdict(list)
    for event in sorted(events, key=lambda event: event["ts"]):
        if event.get("cat") == PYTHON:
            functions[event.get("tid")].append(event)
    starts = {thread: [call["ts"] for call in calls] for thread, calls in functions.items()}
    counted: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for wait in waits:
        # A caller begins before the wait, which the sorted starts give, and ends after it.
        begun = bisect_right(starts.get(wait.get("tid"), []), wait["ts"])
        end = wait["ts"] + wait["dur"]
        before = functions.get(wait.get("tid"), [])[:begun]
        around = [call["name"] for call in before if call["ts"] + call["dur"] >= end]
        counted[wait["name"], tuple(reversed(around[-_FRAMES:]))] += 1
    return [
        {"call": call, "count": count, "callers": list(callers)}
        for (call, callers), count in counted.most_common()
    ]
