"""Facts about this machine, read without torch: GPUs, limits, memory, file systems, environment variables."""

import os
import platform
import re
import resource
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mb_schema.paths import exists

GPU_FIELDS = (
    "name",
    "driver_version",
    "memory.total",
    "memory.used",
    "clocks.sm",
    "clocks.max.sm",
    "clocks_throttle_reasons.hw_slowdown",  # drivers before 535 reject the newer name, clocks_event_reasons
    "ecc.errors.uncorrected.volatile.total",
    "temperature.gpu",
)
"""Columns of `nvidia-smi --query-gpu`, in MiB, MHz and degrees Celsius."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU, as the driver reports it; None where it does not. Clocks are those of the multiprocessors (SM)."""

    name: str
    driver: str
    memory_mib: int | None
    used_mib: int | None
    clock_mhz: int | None
    max_clock_mhz: int | None
    slowed_down: bool
    """Whether the hardware has reduced the clocks: too hot, or short of power."""
    uncorrected_errors: int | None
    """Memory errors (ECC) since the driver was loaded."""
    temperature: int | None
    """Degrees Celsius."""


def read_gpus() -> tuple[Gpu, ...]:
    """Return the GPUs that `nvidia-smi` lists; none without it."""
    text = _output(
        ["nvidia-smi", f"--query-gpu={','.join(GPU_FIELDS)}", "--format=csv,noheader,nounits"],
    )
    return tuple(parse_gpu(line) for line in text.splitlines() if line.count(",") == len(GPU_FIELDS) - 1)


def parse_gpu(line: str) -> Gpu:
    """Return the GPU of a line of `nvidia-smi`, which has the columns `GPU_FIELDS`."""
    name, driver, *numbers = (part.strip() for part in line.split(","))
    memory, used, clock, max_clock, slowdown, errors, temperature = numbers
    return Gpu(
        name=name,
        driver=driver,
        memory_mib=_number(memory),
        used_mib=_number(used),
        clock_mhz=_number(clock),
        max_clock_mhz=_number(max_clock),
        slowed_down=slowdown == "Active",
        uncorrected_errors=_number(errors),
        temperature=_number(temperature),
    )


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def count_nvlinks() -> int | None:
    """Return the active NVLink connections of the first GPU; None without `nvidia-smi`."""
    text = _output(["nvidia-smi", "nvlink", "--status", "--id=0"])
    return len(re.findall(r"Link \d+: [\d.]+ GB/s", text)) if text else None


def _output(command: Sequence[str]) -> str:
    """Return what a program prints; nothing if it is missing, fails, or takes more than 30 seconds."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Limits and resources of this machine; None where the system does not report one."""

    host: str
    system: str
    glibc: str
    python: str
    cpus: int
    memory_gib: float | None
    memory_limit_gib: float | None
    """Limit of the container."""
    shared_memory_gib: float | None
    """Size of /dev/shm, through which data workers pass batches and NCCL communicates within a node."""
    open_files: int
    """Soft limit; -1: unlimited."""
    locked_memory_kib: int
    """Soft limit; -1: unlimited."""
    huge_pages: str | None
    """Mode of transparent huge pages: always, madvise or never."""
    infiniband: tuple[str, ...]
    """Names of its InfiniBand and RoCE devices."""
    folder: str
    """Folder of the runs; file system and free space are those of the nearest parent that exists."""
    file_system: str | None
    free_gib: float | None


def read_machine(folder: Path) -> Machine:
    """Return the facts about this machine, with the file system of a folder."""
    existing = next(
        (each for each in (folder.absolute(), *folder.absolute().parents) if exists(str(each))), None
    )
    return Machine(
        host=platform.node(),
        system=f"{platform.system()} {platform.release()}",
        glibc=" ".join(platform.libc_ver()).strip(),
        python=platform.python_version(),
        cpus=_usable_cpus(),
        memory_gib=_memory_gib(),
        memory_limit_gib=_container_limit_gib(),
        shared_memory_gib=_size_gib(Path("/dev/shm")),
        open_files=_soft_limit(resource.RLIMIT_NOFILE),
        locked_memory_kib=_soft_limit(resource.RLIMIT_MEMLOCK, unit=1024),
        huge_pages=_in_brackets(_read("/sys/kernel/mm/transparent_hugepage/enabled")),
        infiniband=_entries(Path("/sys/class/infiniband")),
        folder=str(folder),
        file_system=file_system_of(existing.resolve(), _read("/proc/mounts")) if existing else None,
        free_gib=round(shutil.disk_usage(existing).free / 2**30, 1) if existing else None,
    )


def _usable_cpus() -> int:
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _read(path: str) -> str:
    try:
        return os.fsdecode(Path(path).read_bytes())  # a mount point may have any bytes
    except OSError:
        return ""


def _memory_gib() -> float | None:
    found = re.search(r"^MemTotal:\s+(\d+) kB", _read("/proc/meminfo"), re.MULTILINE)
    return round(int(found[1]) / 2**20, 1) if found else None


def _container_limit_gib() -> float | None:
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = _read(path).strip()
        # Without a limit, version 2 of cgroups reports "max", and version 1 a number near 2**63.
        if text.isdigit() and int(text) < 2**60:
            return round(int(text) / 2**30, 1)
    return None


def _size_gib(path: Path) -> float | None:
    return round(shutil.disk_usage(path).total / 2**30, 2) if path.exists() else None


def _soft_limit(kind: int, *, unit: int = 1) -> int:
    """Return the soft limit of a resource, in units of so many bytes; -1: unlimited."""
    limit = resource.getrlimit(kind)[0]
    # RLIM_INFINITY is -1 on Linux up to Python 3.14, and a large number later and on macOS.
    return -1 if limit == resource.RLIM_INFINITY else limit // unit


def _in_brackets(text: str) -> str | None:
    """Return the word in brackets, with which the kernel marks the active mode in a list of modes."""
    found = re.search(r"\[(\w+)\]", text)
    return found[1] if found else None


def _entries(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(each.name for each in folder.iterdir())) if folder.is_dir() else ()


def file_system_of(path: Path, mounts: str) -> str | None:
    """Return the type of the file system of a path without symbolic links, from the text of /proc/mounts.

    The longest mount point decides, and of several mounts on it the last one, which hides the others.
    """
    found = [line.split() for line in mounts.splitlines()]
    points = [(_unescaped(point), kind) for _, point, kind, *_ in found]
    matching = [
        (len(point), index, kind)
        for index, (point, kind) in enumerate(points)
        if path == Path(point) or Path(point) in path.parents
    ]
    return max(matching)[2] if matching else None


def _unescaped(point: str) -> str:
    r"""Return a mount point without the kernel's escapes: a space is `\040`."""
    return re.sub(r"\\([0-7]{3})", lambda escape: chr(int(escape[1], 8)), point)


HARMFUL_VARIABLES: Mapping[str, tuple[str, str]] = {
    "CUDA_LAUNCH_BLOCKING": ("1", "every kernel is waited for"),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": ("1", "every tensor is allocated by the driver"),
    "TORCH_DISTRIBUTED_DEBUG": ("DETAIL", "every collective is preceded by another one"),
    "NCCL_P2P_DISABLE": ("1", "GPUs of a node communicate through host memory instead of NVLink"),
    "NCCL_SHM_DISABLE": ("1", "GPUs of a node communicate over the network"),
    "NCCL_IB_DISABLE": ("1", "nodes communicate over TCP instead of InfiniBand"),
    "NCCL_NVLS_ENABLE": ("0", "reductions do not use the switches of NVLink"),
    "NCCL_DEBUG": ("TRACE", "every NCCL call is logged"),
    "TORCH_NCCL_BLOCKING_WAIT": ("1", "every collective blocks the CPU"),
    "NVTE_FLASH_ATTN": ("0", "Transformer Engine does not use FlashAttention"),
    "NVTE_FUSED_ATTN": ("0", "Transformer Engine does not use cuDNN's attention"),
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO": ("0", "attention uses slower deterministic kernels"),
    "NVTE_DEBUG": ("1", "Transformer Engine logs in every call"),
    "NVTE_TORCH_COMPILE": ("0", "Transformer Engine's element-wise operations are not fused"),
    "TORCHDYNAMO_DISABLE": ("1", "Megatron's fused element-wise functions are not compiled"),
    "TORCH_COMPILE_DISABLE": ("1", "Megatron's fused element-wise functions are not compiled"),
    "PYTHONDONTWRITEBYTECODE": ("1", "every process compiles all modules again, which doubles its start"),
    "PYTHONMALLOC": ("debug", "Python checks every allocation"),
    "PYTHONDEVMODE": ("1", "Python checks every call and allocation"),
}
"""Environment variables that slow a run down: the harmful value, and what it does."""


def harmful_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are set to a harmful value, with what each does."""
    return {
        f"{name}={value}": effect
        for name, (value, effect) in HARMFUL_VARIABLES.items()
        if environment.get(name, "").upper() == value.upper()
    }
