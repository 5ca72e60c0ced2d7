"""Diagnosis of this machine: versions, hardware, lost fast paths and faults, with one verdict.

1. Facts are read without importing a library (`machine`, `versions`, `fast_paths`), torch's in a process of its own
   (`probe`).
2. `find_problems` compares them with what is known, without reading anything.
3. `as_text` and `as_data` print the facts and the findings.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from mb_guard.fast_paths import FAST_PATHS, FastPath, lost_names
from mb_guard.installation import status
from mb_guard.machine import Gpu, Machine, count_nvlinks, harmful_variables, read_gpus, read_machine
from mb_guard.report import FaultStatus
from mb_guard.sources import module_file
from mb_guard.versions import installed_version, known_pairs

DISTRIBUTIONS = (
    *("megatron-core", "transformer-engine", "torch", "nvidia-resiliency-ext", "triton"),
    *("flash-attn", "apex", "megatron-bridge", "nemo-run", "numpy", "mb-trainer", "mb-guard"),
)
"""Distributions whose versions are printed."""

Level = Literal["problem", "warning", "note"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing to change or to know."""

    level: Level
    about: str
    text: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.level}: {self.about}: {self.text}.{f' {self.fix}' if self.fix else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LostPath:
    """A fast path that Megatron Core loses here."""

    path: FastPath
    reason: str
    installed: bool
    """Whether its module is there, so that the loss is silent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What one process of the doctor read."""

    versions: Mapping[str, str | None]
    torch: Mapping[str, Any]
    machine: Machine
    gpus: tuple[Gpu, ...]
    nvlinks: int | None
    environment: Mapping[str, str]
    """Harmful variables that are set, with what each does."""
    faults: tuple[FaultStatus, ...] = field(repr=False)
    lost: tuple[LostPath, ...]


def read_facts(folder: Path, environment: Mapping[str, str]) -> Facts:
    """Read the facts about this process, machine and environment; takes the time of importing torch."""
    missing = {path.id: lost_names(path) for path in FAST_PATHS}
    found = _probe([path for path in FAST_PATHS if not missing[path.id]])
    reasons = {id: f"has no {', '.join(names)}" for id, names in missing.items() if names}
    reasons |= {id: f"cannot be imported ({error})" for id, error in found["import_errors"].items()}
    return Facts(
        versions={name: installed_version(name) for name in DISTRIBUTIONS},
        torch=found["torch"],
        machine=read_machine(folder),
        gpus=read_gpus(),
        nvlinks=count_nvlinks(),
        environment=harmful_variables(environment),
        faults=status().statuses,
        lost=tuple(
            LostPath(path=path, reason=reasons[path.id], installed=module_file(path.module) is not None)
            for path in FAST_PATHS
            if path.id in reasons
        ),
    )


def _probe(paths: Sequence[FastPath]) -> dict[str, Any]:
    """Import torch and the modules in another process; a crash or a hang of it is an error of torch."""
    command = [sys.executable, "-m", "mb_guard.probe", *(path.id for path in paths)]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=300, check=False, env=environment
        )
    except subprocess.TimeoutExpired:
        return {"torch": {"error": "importing it took more than 300 seconds"}, "import_errors": {}}
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return {"torch": {"error": f"exit code {done.returncode}: {last}"}, "import_errors": {}}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def find_problems(facts: Facts) -> list[Finding]:
    """Return what is wrong, slow or worth knowing, the worst first."""
    found = [
        *_version_findings(facts),
        *_gpu_findings(facts),
        *_machine_findings(facts.machine, gpus=len(facts.gpus)),
        *(
            Finding(level="warning", about=name, text=effect, fix="Unset it.")
            for name, effect in facts.environment.items()
        ),
        *_fast_path_findings(facts),
        *_fault_findings(facts),
    ]
    order = ("problem", "warning", "note")
    return sorted(found, key=lambda each: order.index(each.level))


def _version_findings(facts: Facts) -> Iterator[Finding]:
    if facts.versions.get("megatron-core") is None:
        yield Finding(
            level="warning",
            about="megatron-core",
            text="is not installed",
            fix="pip install megatron-core",
        )
    error = facts.torch.get("error")
    if error:
        yield Finding(
            level="problem",
            about="torch",
            text=f"cannot be imported ({error})",
            fix="Install torch for this driver: https://pytorch.org/get-started.",
        )
    for pair in known_pairs(facts.versions):
        names = " with ".join(f"{name} {facts.versions[name]}" for name in pair.bounds)
        yield Finding(level="warning", about=names, text=pair.problem, fix=pair.fix)


def _gpu_findings(facts: Facts) -> Iterator[Finding]:
    torch = facts.torch
    if not facts.gpus:
        yield Finding(
            level="note",
            about="GPU",
            text="nvidia-smi lists none",
            fix="Megatron Core runs on the CPU with mb_host.install().",
        )
    elif torch.get("version") and not torch.get("devices"):
        built = torch.get("cuda")
        yield Finding(
            level="problem",
            about="torch",
            text=f"sees no GPU, nvidia-smi lists {len(facts.gpus)} (torch is built for "
            f"{f'CUDA {built}' if built else 'CPUs'}, the driver is {facts.gpus[0].driver})",
            fix="Install a torch whose CUDA this driver supports; look at CUDA_VISIBLE_DEVICES.",
        )
    unsupported = sorted({*torch.get("capabilities", ())} - {*torch.get("architectures", ())})
    if torch.get("architectures") and unsupported and not _covered(unsupported, torch["architectures"]):
        yield Finding(
            level="problem",
            about="torch",
            text=f"has no kernels for {', '.join(unsupported)}",
            fix="Install a torch that is built for this GPU.",
        )
    for index, gpu in enumerate(facts.gpus):
        yield from _one_gpu(gpu, about=f"GPU {index}")
    if len({gpu.name for gpu in facts.gpus}) > 1:
        yield Finding(
            level="warning", about="GPUs", text="are of several kinds; the slowest determines each step"
        )
    if len(facts.gpus) > 1 and facts.nvlinks == 0:
        yield Finding(
            level="warning",
            about="NVLink",
            text=f"no active connection among {len(facts.gpus)} GPUs",
            fix="Keep tensor parallelism at 1, or use a machine with NVLink.",
        )


def _covered(capabilities: Sequence[str], architectures: Sequence[str]) -> bool:
    """Return whether each GPU runs the kernels of a lower minor version or of PTX."""
    majors = {each[:-1] for each in architectures if each.startswith("sm_")}
    return all(each[:-1] in majors for each in capabilities) or any(
        each.startswith("compute_") for each in architectures
    )


def _one_gpu(gpu: Gpu, *, about: str) -> Iterator[Finding]:
    if gpu.uncorrected_errors:
        yield Finding(
            level="problem",
            about=about,
            text=f"{gpu.uncorrected_errors} uncorrected memory errors",
            fix="Reset or replace it.",
        )
    if gpu.used_mib is not None and gpu.used_mib > 1024:
        yield Finding(
            level="warning",
            about=about,
            text=f"{gpu.used_mib} MiB are in use by other processes",
            fix="nvidia-smi lists them.",
        )
    if gpu.slowed_down:
        yield Finding(
            level="problem", about=about, text=f"the hardware slows it down (at {gpu.temperature} degrees)"
        )


def _machine_findings(machine: Machine, *, gpus: int) -> Iterator[Finding]:
    shared = machine.shared_memory_gib
    if shared is not None and shared < 1:
        yield Finding(
            level="problem" if shared < 0.1 and gpus else "warning",
            about="/dev/shm",
            text=f"{shared} GiB; data workers and NCCL use it",
            fix="docker run --ipc=host, or --shm-size=16g.",
        )
    if 0 <= machine.open_files < 4096:
        yield Finding(
            level="warning",
            about="open files",
            text=f"at most {machine.open_files} (ulimit -n); ranks, data files and connections need more",
            fix="ulimit -n 65536.",
        )
    if machine.infiniband and machine.locked_memory_kib >= 0:
        yield Finding(
            level="problem",
            about="locked memory",
            text=f"at most {machine.locked_memory_kib} KiB (ulimit -l) with InfiniBand, which registers memory",
            fix="ulimit -l unlimited, docker run --ulimit memlock=-1.",
        )
    if gpus and machine.cpus < 2 * gpus:
        yield Finding(
            level="warning",
            about="CPUs",
            text=f"{machine.cpus} for {gpus} GPUs; each rank launches kernels and loads data",
            fix="Give each GPU four or more.",
        )
    if machine.huge_pages == "never":
        yield Finding(
            level="note",
            about="transparent huge pages",
            text="never; staging buffers of checkpoints are slower",
            fix="echo madvise > /sys/kernel/mm/transparent_hugepage/enabled.",
        )
    if machine.free_gib is not None and machine.free_gib < 10:
        yield Finding(
            level="warning", about=machine.folder, text=f"{machine.free_gib} GiB are free for checkpoints"
        )
    if machine.file_system in {"overlay", "tmpfs"}:
        yield Finding(
            level="note",
            about=machine.folder,
            text=f"is on {machine.file_system}: checkpoints are lost with the container or the machine",
        )


def _fast_path_findings(facts: Facts) -> Iterator[Finding]:
    """Yield the paths whose package is installed, so that their loss is silent; and missing packages with a GPU."""
    for lost in facts.lost:
        if lost.installed:
            yield Finding(
                level="warning" if facts.gpus else "note",
                about=lost.path.module,
                text=f"{lost.reason}, used for {lost.path.used_for}. Without it: {lost.path.without}",
            )
        elif facts.gpus and lost.path.module == "transformer_engine.pytorch":
            yield Finding(
                level="warning",
                about=lost.path.module,
                text=f"is not installed. Without it: {lost.path.without}",
                fix=f"pip install {lost.path.distribution}.",
            )


def _fault_findings(facts: Facts) -> Iterator[Finding]:
    for each in facts.faults:
        if each.state in {"to know", "refused"}:
            yield Finding(
                level="note", about=each.fault.id, text=each.fault.summary.rstrip("."), fix=each.fault.advice
            )
        if each.state == "unknown source":
            yield Finding(level="warning", about=each.fault.id, text=f"is not put right: {each.detail}")


def verdict(findings: Sequence[Finding]) -> str:
    """Return the last line: what the findings amount to."""
    problems = sum(each.level == "problem" for each in findings)
    warnings = sum(each.level == "warning" for each in findings)
    if problems:
        return f"verdict: not ready, {problems} {'problem' if problems == 1 else 'problems'}, {warnings} to look at"
    return f"verdict: ready, {warnings} to look at" if warnings else "verdict: ready"


def exit_code(findings: Sequence[Finding]) -> int:
    """Return 1 with a problem, else 0."""
    return int(any(each.level == "problem" for each in findings))


def as_data(facts: Facts, findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the diagnosis for JSON."""
    return {
        "verdict": verdict(findings).removeprefix("verdict: "),
        "findings": [asdict(each) for each in findings],
        "versions": dict(facts.versions),
        "torch": dict(facts.torch),
        "machine": asdict(facts.machine),
        "gpus": [asdict(gpu) for gpu in facts.gpus],
        "nvlinks": facts.nvlinks,
        "environment": dict(facts.environment),
        "lost_fast_paths": {
            lost.path.id: {"reason": lost.reason, "installed": lost.installed, "without": lost.path.without}
            for lost in facts.lost
        },
        "faults": {each.fault.id: each.state for each in facts.faults},
    }


def as_text(facts: Facts, findings: Sequence[Finding]) -> str:
    """Return the diagnosis as text: what people paste into a bug report."""
    machine, torch = facts.machine, facts.torch
    versions = [f"{name} {version}" for name, version in facts.versions.items() if version]
    lines = [
        f"versions     Python {machine.python}, {', '.join(versions) or 'none of the known libraries'}",
        f"torch        {_torch_line(torch)}",
        f"machine      {machine.host}: {machine.system}, {machine.glibc}, {machine.cpus} CPUs, "
        f"{machine.memory_gib} GiB memory"
        + (f" (limit {machine.memory_limit_gib} GiB)" if machine.memory_limit_gib else ""),
        f"limits       open files {_limit(machine.open_files)}, locked memory {_limit(machine.locked_memory_kib)} KiB, "
        f"/dev/shm {machine.shared_memory_gib} GiB, huge pages {machine.huge_pages}",
        f"run folder   {machine.folder}: {machine.file_system}, {machine.free_gib} GiB free",
        *_gpu_lines(facts),
        "",
        "fast paths   not installed: "
        + (
            ", ".join(dict.fromkeys(lost.path.distribution for lost in facts.lost if not lost.installed))
            or "none"
        ),
        "             installed, but lost: "
        + (", ".join(lost.path.id for lost in facts.lost if lost.installed) or "none"),
        "",
        "faults       " + ", ".join(f"{count} {state}" for state, count in _states(facts.faults).items()),
        *(f"    {each.fault.id} ({each.fault.effect}): {_done(each)}" for each in facts.faults),
        "",
        *map(str, findings),
        verdict(findings),
    ]
    return "\n".join(lines)


def _torch_line(torch: Mapping[str, Any]) -> str:
    if torch.get("error"):
        return f"cannot be imported: {torch['error']}"
    libraries = {"CUDA": torch["cuda"], "cuDNN": torch["cudnn"], "NCCL": torch["nccl"]}
    found = [f"{name} {version}" for name, version in libraries.items() if version is not None]
    return ", ".join([str(torch["version"]), *found])


def _gpu_lines(facts: Facts) -> Iterator[str]:
    for index, gpu in enumerate(facts.gpus):
        yield (
            f"GPU {index:<8} {gpu.name}, driver {gpu.driver}, {gpu.memory_mib} MiB ({gpu.used_mib} in use), "
            f"{gpu.clock_mhz} of {gpu.max_clock_mhz} MHz, {gpu.temperature} degrees"
        )
    if facts.nvlinks is not None:
        yield f"NVLink       {facts.nvlinks} active connections of GPU 0"


def _limit(value: int) -> str:
    return "unlimited" if value < 0 else str(value)


def _states(faults: Sequence[FaultStatus]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for each in faults:
        counts[_done(each).partition(":")[0]] = counts.get(_done(each).partition(":")[0], 0) + 1
    return counts


def _done(status: FaultStatus) -> str:
    if status.state == "pending":
        return "put right by mb_guard.install()"
    return f"{status.state}: {status.detail}" if status.detail else status.state
