"""Cost of one call of AgreedStop in microseconds, by kind of store.

Run: python benchmarks/bench_poll.py (needs torch for the TCPStore rows). Both ranks are called from one process in
alternation, to measure the round trip to the store and not the wait for another process.
"""

import time
from datetime import timedelta

import torch.distributed as dist

from mb_resilience import AgreedStop


class IdleWatcher:
    """Watcher without stop requests."""

    received = None


def microseconds(stops, steps, pause=0.0):
    spent = [0.0] * len(stops)
    for step in range(1, steps + 1):
        time.sleep(pause)
        for index, stop in enumerate(stops):
            begin = time.perf_counter()
            stop(step)
            spent[index] += time.perf_counter() - begin
    return [1e6 * seconds / steps for seconds in spent]


def main():
    server = dist.TCPStore("127.0.0.1", 0, 1, True, timedelta(seconds=30), wait_for_workers=False)
    client = dist.TCPStore("127.0.0.1", server.port, 1, False, timedelta(seconds=30), wait_for_workers=False)
    print(f"one rank, no store: {microseconds([AgreedStop(IdleWatcher())], 20_000)[0]:.2f} us a step")
    for every in (1, 10):
        stops = [
            AgreedStop(IdleWatcher(), store=store, rank=rank, world_size=2, attempt=f"{every}", every=every)
            for rank, store in enumerate((server, client))
        ]
        zero, other = microseconds(stops, 5_000)
        print(
            f"TCPStore on the same machine, every={every}: rank 0 {zero:.1f} us, other ranks {other:.1f} us a step"
        )
    threads = [
        dist.TCPStore("127.0.0.1", server.port, None, False, timedelta(seconds=30), wait_for_workers=False)
        for _ in range(2)
    ]
    stops = [
        AgreedStop(IdleWatcher(), store=store, rank=rank, world_size=2, attempt="thread", in_background=True)
        for rank, store in enumerate(threads)
    ]
    zero, other = microseconds(stops, 500, pause=0.01)
    print(
        f"the same, in_background=True, steps of 10 ms: rank 0 {zero:.1f} us, other ranks {other:.1f} us a step"
    )
    for stop in stops:
        stop.close()


if __name__ == "__main__":
    main()
