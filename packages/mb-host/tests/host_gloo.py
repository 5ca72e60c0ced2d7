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


def made_with(settings):
    """Return whether a group of this process shares the device, and two of its options."""
    shared, members = distributed_c10d.ProcessGroupGloo, []
    recording = type(shared)("ProcessGroupGloo", (), {"original": Recorder(shared.original, members)})
    recording(None, 0, 1, **settings)
    options = members[3]
    return len(options._devices) == 1, options._timeout.total_seconds(), options._threads


class Recorder:
    """Class of groups that records the arguments of a group instead of making it."""

    def __init__(self, made, members):
        self._Options, self.create_default_device, self.members = (
            made._Options,
            made.create_default_device,
            members,
        )

    def __call__(self, *members):
        self.members.extend(members)
        return self


def refused_by_torch(settings):
    """Return whether torch itself refuses an argument, which thus reached it."""
    try:
        distributed_c10d.ProcessGroupGloo(dist.HashStore(), 0, 1, **settings)
    except TypeError as error:
        return "ProcessGroupGloo" in str(error) and next(iter(settings)) in str(error)
    return False
