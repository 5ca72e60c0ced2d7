"""Calls of `install`, each in a fork of one process that has imported torch, and what they answered."""

import json
import multiprocessing
import sys
from types import ModuleType

import torch

import mb_host
from mb_host.rank_messages import RankOrders
from mb_host.rank_server_main import refusal


def plain() -> list:
    report = mb_host.install()
    again = mb_host.install(force=True)
    return [bool(report), report.reason, again is report, torch.cuda.is_available()]


def pretend_gpu() -> None:
    """Answer, on machines without a GPU, the only two questions that `install` asks before it decides."""
    torch.cuda.is_available, torch.cuda.get_device_name = lambda: True, lambda: "GPU"


def with_gpu() -> list:
    pretend_gpu()
    empty, report = torch.empty, mb_host.install()
    return [bool(report), report.reason, torch.cuda.is_available(), torch.empty is empty]


def forced() -> list:
    pretend_gpu()
    empty, report = torch.empty, mb_host.install(force=True)
    return [bool(report), report.reason, torch.cuda.is_available(), torch.empty is empty]


def after_megatron() -> list:
    sys.modules["megatron.core"] = ModuleType("megatron.core")
    try:
        return [bool(mb_host.install())]
    except mb_host.MegatronAlreadyImportedError as error:
        return [isinstance(error, RuntimeError), str(error)]


def unknown_mend() -> list:
    try:
        return [bool(mb_host.install(mends=("no_such_fault",)))]
    except ValueError as error:
        return [str(error)]


def with_gpu_forked() -> list:
    pretend_gpu()
    here = {"environment": {}, "path": tuple(sys.path), "folder": "."}
    return [refusal(RankOrders(rank=0, world_size=1, imports=(), **here))]


CALLS = (plain, with_gpu, forced, after_megatron, unknown_mend, with_gpu_forked)


def main() -> None:
    """Print a JSON object: name of the call to its answer."""
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        print(json.dumps({call.__name__: pool.apply(call) for call in CALLS}))
