"""Collectives that this rank has called, from the memory of torch's flight recorder. Imports torch.

torch has no public function for it; versions without the functions that are used here have no record.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread

import torch._C._distributed_c10d as c10d
from torch.distributed import distributed_c10d

from mb_resilience.hangs.collective_records import GroupCollectives, parse_record

READERS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
"""Functions that return the records of gloo and of NCCL: (with collectives, only active ones) -> JSON."""
PATIENCE_SECONDS = 5.0
"""A device that hangs may block the record of NCCL."""


def read_collectives(*, patience: float = PATIENCE_SECONDS) -> tuple[GroupCollectives, ...] | None:
    """Return the newest collective of each process group; None if torch has no record, or does not return it in time.

    May be called from any thread.
    """
    answers: SimpleQueue[tuple[GroupCollectives, ...]] = SimpleQueue()
    readers = [function for name in READERS if callable(function := vars(c10d).get(name))]
    if not readers:
        return None
    Thread(target=_read, args=(readers, answers), name="flight record", daemon=True).start()
    try:
        return answers.get(timeout=patience)
    except Empty:
        return None


def _read(
    readers: list[Callable[[bool, bool], bytes]], answers: "SimpleQueue[tuple[GroupCollectives, ...]]"
) -> None:
    collectives: list[GroupCollectives] = []
    with suppress(AttributeError, KeyError, TypeError, ValueError):  # another version of torch
        ranks = ranks_of_groups()
        for read in readers:
            collectives += parse_record(json.loads(read(True, False)), group_ranks=ranks)
    answers.put(tuple(collectives))


def ranks_of_groups() -> dict[str, list[int]]:
    """Return the ranks of each process group that this rank belongs to, by the name of the group."""
    world = distributed_c10d._world
    return {str(name): sorted(world.pg_group_ranks.get(group, ())) for group, name in world.pg_names.items()}
