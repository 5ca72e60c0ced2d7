"""GPUs of this machine, found without importing torch in this process. The standard library only.

There are three sources; the first one that lists a GPU is used: the folder of NVIDIA's driver in /proc, `nvidia-smi`,
and torch in a subprocess, if a device file shows that there is a GPU. A container or a virtual machine may lack any of
them.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

DRIVER = Path("/proc/driver/nvidia/gpus")
"""Folder of NVIDIA's driver, with one subfolder for each device."""
DEVICE_FILES = Path("/dev")
"""Folder of the device files: nvidia0, nvidia1, ..., and dxg under WSL."""
SYSTEM = Path("/sys")
"""Folder in which the kernel describes PCI devices."""

QUERY = ("name", "uuid", "pci.bus_id", "memory.total", "driver_version")
"""Fields queried from `nvidia-smi`; memory is in MiB."""
TIMEOUT_SECONDS = 60.0
"""Seconds that `nvidia-smi`, or torch in a subprocess, may take."""

TORCH_QUERY = """
import json, torch
found = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
print(json.dumps([
    {"name": each.name, "memory": each.total_memory, "uuid": f"GPU-{each.uuid}" if hasattr(each, "uuid") else None,
     "bus": [getattr(each, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]}
    for each in found
]))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """One GPU of this machine; fields that the source does not report are None."""

    name: str
    """Model, such as "NVIDIA H200"."""
    uuid: str | None = None
    """NVIDIA's identifier, such as "GPU-5c3d...", which CUDA_VISIBLE_DEVICES may contain."""
    bus_id: str | None = None
    """PCI address in the kernel's notation, such as "0000:17:00.0"."""
    memory_gib: float | None = None
    driver_version: str | None = None
    numa_node: int | None = None
    """NUMA node that the GPU is attached to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSources:
    """Folders and programs that describe GPUs; tests pass others."""

    driver: Path = DRIVER
    device_files: Path = DEVICE_FILES
    system: Path = SYSTEM
    nvidia_smi: str = "nvidia-smi"
    """Name or path of the program."""
    python: str = sys.executable
    """Interpreter of the subprocess that imports torch."""


THIS_MACHINE = GpuSources()


def read_gpus(*, details: bool = False, sources: GpuSources = THIS_MACHINE) -> tuple[GpuFacts, ...]:
    """Return the GPUs of this machine in the order of their PCI addresses; empty if no source lists any.

    Args:
        details: Prefer `nvidia-smi`, which reports the memory, but may take a second.
        sources: Folders and programs to read.
    """
    readers = [_from_driver, _from_nvidia_smi, _from_torch]
    if details:
        readers = [_from_nvidia_smi, _from_driver, _from_torch]
    for reader in readers:
        if found := reader(sources):
            return tuple(
                replace(gpu, numa_node=numa_node_of(gpu.bus_id, system=sources.system)) for gpu in found
            )
    return ()


def visible_gpus(gpus: Sequence[GpuFacts], environment: Mapping[str, str]) -> tuple[GpuFacts | None, ...]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES makes visible to a process, in CUDA's order.

    An entry is None if it cannot be identified: a MIG device, or an index on a machine with several models, which CUDA
    numbers by speed unless CUDA_DEVICE_ORDER=PCI_BUS_ID is set.
    """
    ordered = environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len({gpu.name for gpu in gpus}) < 2
    by_index: Sequence[GpuFacts | None] = gpus if ordered else [None] * len(gpus)
    selection = environment.get("CUDA_VISIBLE_DEVICES")
    if selection is None:
        return tuple(by_index)
    visible: list[GpuFacts | None] = []
    for entry in (part.strip() for part in selection.split(",")):
        if entry.startswith("MIG-"):
            visible.append(None)
        elif entry.isdecimal() and int(entry) < len(gpus):
            visible.append(by_index[int(entry)])
        else:
            matches = [gpu for gpu in gpus if entry.startswith("GPU-") and (gpu.uuid or "").startswith(entry)]
            if len(matches) != 1:
                break  # CUDA ignores the list from its first invalid entry on
            visible += matches
    return tuple(visible)


def visible_gpu_names(
    environment: Mapping[str, str], *, sources: GpuSources = THIS_MACHINE
) -> list[str | None]:
    """Return the names of the GPUs of this machine that CUDA shows to a process; None for one without a known model.

    Args:
        environment: Variables of the process.
        sources: Folders and programs to read.
    """
    visible = visible_gpus(read_gpus(sources=sources), environment)
    return [None if gpu is None else gpu.name for gpu in visible]


def describe_gpus(gpus: Sequence[GpuFacts]) -> str:
    """Return a one-line description of the GPUs of a machine: number and model, memory, driver and NUMA nodes."""
    names = list(dict.fromkeys(gpu.name for gpu in gpus))
    parts = [", ".join(f"{sum(gpu.name == name for gpu in gpus)} x {name}" for name in names)]
    memory = sorted({round(gpu.memory_gib, 1) for gpu in gpus if gpu.memory_gib is not None})
    parts += [f"{' or '.join(f'{size:g}' for size in memory)} GiB each"] if memory else []
    parts += [f"driver {version}" for version in {gpu.driver_version for gpu in gpus} if version is not None]
    nodes = [gpu.numa_node for gpu in gpus]
    if any(node is not None for node in nodes):
        parts.append(f"NUMA nodes {', '.join('unknown' if node is None else str(node) for node in nodes)}")
    return ", ".join(parts)


def numa_node_of(bus_id: str | None, *, system: Path = SYSTEM) -> int | None:
    """Return the NUMA node that a PCI device is attached to; None if the kernel does not know it."""
    if bus_id is None:
        return None
    try:
        node = int((system / "bus/pci/devices" / bus_id / "numa_node").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def kernel_bus_id(text: str) -> str | None:
    """Return a PCI address in the kernel's notation (nvidia-smi prints "00000000:17:00.0"); None for another form."""
    match = re.fullmatch(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-9a-f])", text.strip().lower())
    if match is None:
        return None
    domain, bus, device, function = match.groups()
    return f"{int(domain, 16):04x}:{bus}:{device}.{function}"


def _from_driver(sources: GpuSources) -> list[GpuFacts]:
    """Return the GPUs that the driver lists in /proc, without their memory."""
    version = None
    try:
        text = (sources.driver.parent / "version").read_text(encoding="utf-8")
        version = (re.findall(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b", text) or [None])[0]
    except OSError:
        pass
    gpus = []
    for information in sorted(sources.driver.glob("*/information")):
        values = dict(
            re.findall(
                r"^([^:\n]+):[ \t]*(.*?)[ \t]*$", information.read_text(encoding="utf-8"), flags=re.MULTILINE
            )
        )
        gpus.append(
            GpuFacts(
                name=values.get("Model", "unknown"),
                uuid=values.get("GPU UUID"),
                bus_id=kernel_bus_id(values.get("Bus Location", information.parent.name)),
                driver_version=version,
            )
        )
    return gpus


def _from_nvidia_smi(sources: GpuSources) -> list[GpuFacts]:
    """Return the GPUs that `nvidia-smi` lists; none if it is missing, fails, or prints other columns."""
    program = shutil.which(sources.nvidia_smi)
    if program is None:
        return []
    output = _output_of([program, f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits"])
    gpus = []
    for line in output.splitlines():
        values = [value.strip() for value in line.split(",")]
        if len(values) != len(QUERY):
            return []
        name, uuid, bus_id, mebibytes, version = values
        memory = float(mebibytes) / 1024 if re.fullmatch(r"\d+(\.\d+)?", mebibytes) else None
        bus = kernel_bus_id(bus_id)
        gpus.append(GpuFacts(name=name, uuid=uuid, bus_id=bus, memory_gib=memory, driver_version=version))
    return gpus


def _from_torch(sources: GpuSources) -> list[GpuFacts]:
    """Return all GPUs that torch lists without CUDA_VISIBLE_DEVICES, which `visible_gpus` applies later.

    Importing torch takes seconds: without a device file of a GPU none is assumed.
    """
    if not any(sources.device_files.glob("nvidia[0-9]*")) and not (sources.device_files / "dxg").exists():
        return []
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    output = _output_of([sources.python, "-W", "ignore", "-c", TORCH_QUERY], environment=environment)
    try:
        answers = json.loads(output)
    except ValueError:
        return []
    gpus = []
    for answer in answers:
        bus = None if None in answer["bus"] else "{:04x}:{:02x}:{:02x}.0".format(*answer["bus"])
        memory = answer["memory"] / 2**30
        gpus.append(GpuFacts(name=answer["name"], uuid=answer["uuid"], bus_id=bus, memory_gib=memory))
    return gpus


def _output_of(command: Sequence[str], *, environment: Mapping[str, str] | None = None) -> str:
    """Return what a program prints; "" if it fails or hangs, as it does under a driver that has lost its GPU."""
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout
