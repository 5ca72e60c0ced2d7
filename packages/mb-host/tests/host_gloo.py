"""Process groups of gloo on ranks."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d


def threads():
    return len([*Path("/proc/self/task").iterdir()])


def threads_of_groups(number):
    """Return how many threads a number of groups adds, and a sum over the last."""
    before = threads()
    groups = [dist.new_group() for _ in range(number)]
    total = torch.ones(2)
    dist.all_reduce(total, group=groups[-1])
    return threads() - before, total.tolist()


def sum_in_a_fork():
    """Return the exit code of a forked process that makes a group and uses it."""
    pid = os.fork()
    if pid == 0:
        group = distributed_c10d.ProcessGroupGloo(dist.HashStore(), 0, 1)
        group.allreduce([torch.ones(1)]).wait()
        os._exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
