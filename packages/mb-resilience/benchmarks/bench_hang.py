"""Cost of hang detection: microseconds of a note in the training loop, and of a heartbeat in the thread.

Run: python benchmarks/bench_hang.py (needs torch for the TCPStore row).
"""

import time
from datetime import timedelta

import torch.distributed as dist

from mb_resilience import HangReporter


def microseconds(work, times):
    """Return the mean time of one call."""
    begin = time.perf_counter()
    for step in range(times):
        work(step)
    return 1e6 * (time.perf_counter() - begin) / times


def main():
    server = dist.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=30), wait_for_workers=False)
    client = dist.TCPStore("127.0.0.1", server.port, None, False, timedelta(seconds=30))
    reporter = HangReporter(seconds=300, store=client, rank=0, world_size=1)
    with reporter:
        print(
            f"a note, in the loop: {microseconds(lambda step: reporter.note('step', step), 500_000):.2f} us"
        )
    heartbeat = microseconds(lambda step: reporter._publish_status(reporter._status(0.0)), 5_000)
    print(
        f"a heartbeat, in the thread, through a TCPStore on the same machine: {heartbeat:.0f} us every 10 s"
    )


if __name__ == "__main__":
    main()
