"""Reproducible arithmetic on the CPU: a fixed number of threads and fixed kernels in every process."""

import ctypes
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

VECTOR_MATH = (
    *(
        "acos",
        "asin",
        "atan",
        "cos",
        "erf",
        "erfc",
        "erfinv",
        "exp",
        "expm1",
        "log",
        "log10",
        "log1p",
        "log2",
    ),
    *("sin", "sinh", "cosh", "sqrt", "tan", "tanh", "trunc"),
)
"""Functions of torch that MKL's vector math computes on contiguous tensors."""


@cache
def torch_library() -> ctypes.CDLL | None:
    """Return torch's CPU library, which exports the symbols of its OpenMP and MKL; None for other builds."""
    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    return ctypes.CDLL(str(path)) if path.is_file() else None


def call(name: str, *arguments: int) -> int | None:
    """Call a C function of torch's libraries with integers; return None if this build of torch does not have it."""
    try:
        function = getattr(torch_library(), name)
    except AttributeError:
        return None
    return int(function(*arguments))


def make_cpu_arithmetic_reproducible() -> None:
    """Make identical processes compute identical bits on the CPU. Has no cost after this call, and starts no thread.

    Otherwise two things differ between processes. With `OMP_DYNAMIC=true` OpenMP chooses the number of threads by the
    load average of the machine, and a matrix product of MKL splits its inner dimension by that number. (MKL's
    adjustment, `MKL_DYNAMIC`, reads the number of cores once and does not depend on the load; it is not changed.)

    The second is a race in MKL 2024.2 (pytorch/pytorch#188792). The first call of its vector math in a process detects
    the processor (`mkl_vml_serv_cpu_detect`), stores the raw number, and a few instructions later the index of the
    kernels that belongs to it. A thread that reads in between uses the raw number as an index: with
    AVX-512 it runs AVX2 kernels with relative errors of 1e-4, for its part of that one operation. In a GPT with rotary
    embeddings this is a cosine of the first attention layer, in the first step after a start. A call with one element,
    on one thread, before all other calls avoids the race.

    Affects the calling thread and threads that it starts later, as OpenMP's settings do.
    """
    call("omp_set_dynamic", 0)
    for dtype in (torch.float32, torch.float64):
        one = torch.full((1,), 0.5, dtype=dtype)
        for name in VECTOR_MATH:
            getattr(torch, name)(one)


def make_index_add_deterministic() -> None:
    """Make torch's index additions deterministic on the CPU if it uses several threads; one thread always is.

    Otherwise `index_put_(accumulate=True)`, the gradient of `tensor[indices]`, adds 32-bit numbers atomically from all
    threads, in the order in which they arrive. Enables torch's deterministic algorithms for the process: an
    operation without a deterministic algorithm prints a warning. If they are already enabled, or if there is a GPU,
    nothing changes.
    """
    enabled = torch.are_deterministic_algorithms_enabled()
    if enabled or torch.get_num_threads() == 1 or torch.cuda.is_available():
        return
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # saves time


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuArithmetic:
    """Conditions that determine the bits of a computation on the CPU."""

    threads_requested: str
    """Environment variables that set the number of threads, with their values; "not set" if there are none."""
    threads: int
    """Threads that torch uses within an operation."""
    team: int | None
    """Threads that a parallel region received; None if this build of torch does not expose its OpenMP."""
    dynamic: bool
    """Whether OpenMP may change the number of threads according to the load of the machine."""
    processor: str
    instructions: str
    """Instruction set of torch's kernels, such as AVX512."""
    torch: str
    mkl: str
    """Version of MKL; "none" for a build without it."""

    def as_text(self) -> dict[str, str]:
        """Return the conditions by display name."""
        return {
            "threads requested": self.threads_requested,
            "threads used by torch": str(self.threads),
            "threads received": "unknown" if self.team is None else str(self.team),
            "dynamic threads": "on" if self.dynamic else "off",
            "processor": self.processor,
            "instructions": self.instructions,
            "torch": self.torch,
            "MKL": self.mkl,
        }


def read_arithmetic(environment: Mapping[str, str] | None = None) -> CpuArithmetic:
    """Return the conditions of this process. Runs one parallel region, which starts torch's threads.

    Args:
        environment: variables with the requested number of threads; None: `os.environ`.
    """
    environment = os.environ if environment is None else environment
    names = [name for name in ("MKL_NUM_THREADS", "OMP_NUM_THREADS") if name in environment]
    return CpuArithmetic(
        threads_requested=", ".join(f"{name}={environment[name]}" for name in names) or "not set",
        threads=torch.get_num_threads(),
        team=team_size(),
        dynamic=bool(call("omp_get_dynamic")),
        processor=processor_name(),
        instructions=torch.backends.cpu.get_cpu_capability(),
        torch=torch.__version__,
        mkl=mkl_version(),
    )


def team_size() -> int | None:
    """Return the number of threads that a parallel region of torch's OpenMP receives; None if it is not GNU's."""
    library = torch_library()
    if library is None or not hasattr(library, "GOMP_parallel"):
        return None
    sizes: list[int] = []
    region = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    body = region(lambda _: sizes.append(int(library.omp_get_num_threads())))
    library.GOMP_parallel(body, None, 0, 0)
    return max(sizes)


def processor_name(description: str | Path = "/proc/cpuinfo") -> str:
    """Return the model of the processor, or its architecture if the system does not provide it."""
    try:
        lines = Path(description).read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.machine())


def mkl_version() -> str:
    """Return the version of MKL that torch was built with, or "none"."""
    lines = (line.strip(" -") for line in torch.__config__.show().splitlines())
    version_line = next((line for line in lines if "Math Kernel Library Version" in line), None)
    return "none" if version_line is None else version_line.partition("Version ")[2].partition(" ")[0]


def irreproducibility_reasons(arithmetic: CpuArithmetic) -> tuple[str, ...]:
    """Return the reasons why a run on the CPU is not bitwise reproducible; empty if it is."""
    reasons = []
    if arithmetic.dynamic:
        reasons.append(
            "OMP_DYNAMIC: OpenMP chooses the number of threads by the load of the machine, which changes the "
            "order of sums. Set it to false."
        )
    if arithmetic.team is not None and arithmetic.team != arithmetic.threads:
        reasons.append(
            f"OMP_THREAD_LIMIT: a parallel region received {arithmetic.team} of {arithmetic.threads} threads, and the "
            f"next one may receive another number. Unset it, or set OMP_NUM_THREADS={arithmetic.team}."
        )
    return tuple(reasons)
