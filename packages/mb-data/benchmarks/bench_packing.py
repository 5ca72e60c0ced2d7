"""Benchmark of `pack_lengths`, compared with first-fit-decreasing over a tree of the room in each pack.

Both pack the same log-normal lengths and return the same packs. The tree takes O(n log n) Python steps for n samples,
and is skipped for more than a million.

    python packages/mb-data/benchmarks/bench_packing.py [--samples 1000000] [--size 4096]
"""

import argparse
import time
import tracemalloc

import numpy as np

from mb_data.finetuning.first_fit import pack_lengths


def pack_with_tree(lengths, *, size):
    """Return the indices of the samples in each pack; a node of the tree stores the maximum room below it."""
    leaves = 1 << max(0, len(lengths) - 1).bit_length()
    room = [size] * (2 * leaves)
    packs = []
    for number in sorted(range(len(lengths)), key=lambda each: -lengths[each]):
        node = 1
        while node < leaves:
            node = 2 * node if room[2 * node] >= lengths[number] else 2 * node + 1
        if node - leaves == len(packs):
            packs.append([])
        packs[node - leaves].append(number)
        room[node] -= lengths[number]
        while node > 1:
            node //= 2
            room[node] = max(room[2 * node], room[2 * node + 1])
    return packs


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=4096, help="tokens of a pack")
    options = parser.parse_args()
    drawn = np.random.default_rng(0).lognormal(5.8, 0.9, options.samples).astype(np.int64)
    lengths = np.clip(drawn, 1, options.size)

    started = time.perf_counter()
    index = pack_lengths(lengths, size=options.size)
    seconds = time.perf_counter() - started
    tracemalloc.start()
    pack_lengths(lengths, size=options.size)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    efficiency = lengths.sum() / options.size / len(index)
    print(
        f"pack_lengths: {options.samples:,} samples of {len(np.unique(lengths)):,} lengths in {seconds:.2f} s,"
    )
    print(f"  {len(index):,} packs, efficiency {efficiency:.4f}, peak memory {peak / 2**20:,.0f} MiB")
    if options.samples > 1_000_000:
        return
    started = time.perf_counter()
    packs = pack_with_tree(lengths.tolist(), size=options.size)
    tree_seconds = time.perf_counter() - started
    assert [pack.tolist() for pack in np.split(index.members, index.starts[1:-1])] == packs
    print(f"tree: {tree_seconds:.2f} s, {tree_seconds / seconds:.0f} times as long; the same packs")


if __name__ == "__main__":
    main()
