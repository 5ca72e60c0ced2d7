"""Calls of `install`, each in a fork of one process that has imported torch, and their results."""

import importlib
import json
import multiprocessing
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import mb_host
from mb_host.cpu.reproducibility import VECTOR_MATH, call, make_index_add_deterministic, read_arithmetic
from mb_host.megatron.patches import PATCH_MARK


def plain() -> list:
    report = mb_host.install()
    again = mb_host.install(force=True)
    return [bool(report), report.reason, again is report, torch.cuda.is_available()]


def pretend_gpu() -> None:
    """Fake a GPU for the two queries that `install` makes before it decides."""
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


def before_megatron() -> list:
    """Return whether CUDA calls run on the CPU after each of: the call, a search for Megatron, its import."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "megatron", "core", "__init__.py")
        file.parent.mkdir(parents=True)
        file.write_text("import torch; device = torch.zeros(1, device='cuda').device.type")
        sys.path.insert(0, folder)
        mb_host.install_before_megatron()
        mb_host.install_before_megatron()
        empty = torch.empty
        replaced = [torch.empty is not empty]
        find_spec("megatron.core")
        replaced.append(torch.empty is not empty)
        megatron = importlib.import_module("megatron.core")
        return [
            *replaced,
            torch.empty is not empty,
            megatron.device,
            sys.modules["megatron.core"] is megatron,
        ]


def before_imported_megatron() -> list:
    sys.modules["megatron.core"] = ModuleType("megatron.core")
    finders = list(sys.meta_path)
    mb_host.install_before_megatron()
    return [sys.meta_path == finders]


def unknown_patch() -> list:
    try:
        return [bool(mb_host.install(patches=("no_such_fault",)))]
    except ValueError as error:
        return [str(error)]


def with_gpu_forked() -> list:
    pretend_gpu()
    from mb_host.ranks.rank import fork_obstacle

    return [fork_obstacle()]


def with_gpu_packages() -> list:
    """Install with Transformer Engine on the path, which needs CUDA when it is imported."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "transformer_engine").mkdir()
        Path(folder, "transformer_engine", "__init__.py").write_text("raise OSError('libcuda.so.1')")
        sys.path.insert(0, folder)
        sys.modules["apex"] = sys.modules["apex.optimizers"] = ModuleType("apex")
        mb_host.install()
        return [
            find_spec("transformer_engine"),
            *(import_result(name) for name in ("transformer_engine.pytorch", "apex.optimizers")),
        ]


def import_result(name: str) -> str:
    try:
        return str(importlib.import_module(name))
    except ImportError as error:
        return type(error).__name__


def left_with_gpu() -> list:
    pretend_gpu()
    sys.modules["apex"] = ModuleType("apex")
    mb_host.install()
    return [import_result("apex").startswith("<module")]


DISPATCHER = """
def maybe_move_tensor_to_cpu(tensor): ...
"""


def patched_with_gpu() -> list:
    """Install on a machine with a GPU; return the patches of a function of a fake Megatron."""
    pretend_gpu()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "megatron", "core", "transformer", "moe", "moe_utils.py")
        file.parent.mkdir(parents=True)
        file.write_text(DISPATCHER)
        for parent in file.relative_to(folder).parents[:-1]:
            Path(folder, parent, "__init__.py").touch()
        sys.path.insert(0, folder)
        mb_host.install()
        dispatcher = importlib.import_module("megatron.core.transformer.moe.moe_utils")
    return [getattr(dispatcher.maybe_move_tensor_to_cpu, PATCH_MARK, ())]


class Operations(TorchDispatchMode):
    """Names of the operations that run, with the most elements of each."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: dict[str, int] = {}

    def __torch_dispatch__(self, function, _types, arguments=(), options=None):
        result = function(*arguments, **(options or {}))
        name = function.__name__.partition(".")[0]
        self.elements[name] = max(self.elements.get(name, 0), result.numel())
        return result


def arithmetic_with_gpu() -> dict:
    pretend_gpu()
    return arithmetic()


def arithmetic() -> dict:
    call("omp_set_dynamic", 1)
    before = read_arithmetic().dynamic
    with Operations() as seen:
        mb_host.install()
    after = read_arithmetic()
    return {
        "dynamic": [before, after.dynamic],
        "vector math": [seen.elements.get(name) == 1 for name in VECTOR_MATH],
        "team": [after.threads, after.team],
    }


def index_additions() -> list:
    """Return torch's deterministic mode with one thread, with two threads, and if it was already strict."""
    modes = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        make_index_add_deterministic()
        modes.append(torch.get_deterministic_debug_mode())
    indices, rows = torch.arange(20_000) % 50, torch.rand(20_000, 64)
    sums = [torch.zeros(50, 64).index_put_((indices,), rows, accumulate=True) for _ in range(4)]
    torch.use_deterministic_algorithms(True)
    make_index_add_deterministic()
    return [*modes, torch.get_deterministic_debug_mode(), all(torch.equal(sums[0], each) for each in sums)]


CALLS = (
    arithmetic,
    arithmetic_with_gpu,
    index_additions,
    with_gpu_packages,
    left_with_gpu,
    plain,
    with_gpu,
    forced,
    after_megatron,
    before_megatron,
    before_imported_megatron,
    unknown_patch,
    patched_with_gpu,
    with_gpu_forked,
)


def main() -> None:
    """Print a JSON object: name of the call to its answer."""
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        print(json.dumps({call.__name__: pool.apply(call) for call in CALLS}))
