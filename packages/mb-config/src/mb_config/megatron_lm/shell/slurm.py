"""Variables that Slurm sets for a batch script, by the `#SBATCH` lines at its head."""

import re
import shlex
from collections.abc import Mapping

_OPTIONS: Mapping[str, tuple[str, str]] = {
    "nodes": ("N", r"\d+"),
    "ntasks": ("n", r"\d+"),
    "ntasks-per-node": ("", r"\d+"),
    "cpus-per-task": ("c", r"\d+"),
    "gpus-per-node": ("", r"(?:\w+:)?(\d+)"),
    "gres": ("", r"gpu:(?:\w+:)?(\d+)"),
    "job-name": ("J", r"[^%]+"),
}
"""Option of sbatch -> its short form, and the form of a value that determines a variable."""


def allocation(script: str, given: Mapping[str, object]) -> dict[str, str]:
    """Return name -> value of the variables that follow from the options in a script; empty for other scripts.

    A value in `given` takes precedence over an option where another variable depends on it.
    """
    requested = _requested(script)
    found = {
        "SLURM_NTASKS_PER_NODE": requested.get("ntasks-per-node"),
        "SLURM_CPUS_PER_TASK": requested.get("cpus-per-task"),
        "SLURM_GPUS_PER_NODE": requested.get("gpus-per-node"),
        "SLURM_GPUS_ON_NODE": requested.get("gpus-per-node") or requested.get("gres"),
        "SLURM_JOB_NAME": requested.get("job-name"),
        **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), requested.get("nodes")),
    }
    each, nodes = (str(given.get(name, found[name])) for name in ("SLURM_NTASKS_PER_NODE", "SLURM_NNODES"))
    spread = str(int(nodes) * int(each)) if nodes.isdigit() and each.isdigit() else None
    found["SLURM_NTASKS"] = found["SLURM_NPROCS"] = requested.get("ntasks") or spread
    return {name: value for name, value in found.items() if value is not None}


def _requested(script: str) -> dict[str, str]:
    """Return option -> value of the `#SBATCH` lines before the first command."""
    found: dict[str, str] = {}
    for line in script.splitlines():
        if line.strip() and not line.startswith("#"):
            break
        if line.startswith("#SBATCH"):
            try:
                text = " ".join(shlex.split(line.removeprefix("#SBATCH"), comments=True))
            except ValueError:
                continue
            for option, (short, form) in _OPTIONS.items():
                names = f"--{option}[= ]" + (f"|-{short} ?" if short else "")
                value = re.search(rf"(?:^|\s)(?:{names})({form})(?=\s|$)", text)
                if value is not None:
                    found[option] = value[value.re.groups]
    return found
