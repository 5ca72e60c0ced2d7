"""Functions that run in a separate process and import torch, and leave values for the row that started them."""

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from first_run.machine import Machine
from first_run.row import RowFailed
from first_run.speed_rows import in_turn_child
from first_run.training_rows import TWO_PERCENT

REQUIRED_MODULES = (
    *("numpy", "yaml", "typer", "rich", "psutil", "xxhash", "hydra", "dataclasses_json", "tokenizers"),
    "megatron",
)
"""Modules without which no row trains."""
TARGET: Mapping[str, Any] = {"gpu": "h200", "transformer_engine": "2.20", "apex": True}
"""GPU, versions and kernels for which a dry run checks the settings."""


def smoke_child() -> dict[str, Any]:
    """Return versions, devices and the result of a collective; print what is known before the collective starts."""
    found = devices()
    print(json.dumps(found), flush=True)
    if missing := [name for name in REQUIRED_MODULES if find_spec(name) is None]:
        raise RowFailed(f"not installed: {', '.join(missing)}. Add a folder of wheels with --packages.")
    return {**found, "all_reduce": all_reduce()}


def doctor_child() -> dict[str, Any]:
    """Print the diagnosis of `mb-guard doctor`; return its verdict, problems, lost paths and faults."""
    from mb_guard.doctor import as_data, as_text, find_problems, read_facts

    facts = read_facts(Path("runs"), os.environ)
    findings = find_problems(facts)
    print(as_text(facts, findings), flush=True)
    data = as_data(facts, findings)
    return {
        "verdict": data["verdict"],
        "problems": [str(each) for each in findings if each.level == "problem"],
        "lost": [id for id, each in data["lost_fast_paths"].items() if each["installed"]],
        "gpus": data["gpus"],
        "faults": data["faults"],
    }


def devices() -> dict[str, Any]:
    """Return versions, devices and the output of nvidia-smi."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    import torch

    versions: dict[str, str | None] = {"python": platform.python_version()}
    for name in ("torch", "megatron-core", "transformer-engine", "nvidia-resiliency-ext", "triton", "numpy"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    versions["cuda"] = torch.version.cuda
    there = torch.cuda.is_available()
    if there:
        versions["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        versions["cudnn"] = str(torch.backends.cudnn.version())
    properties = [
        torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count() if there else 0)
    ]
    smi = ""
    if there and shutil.which("nvidia-smi"):
        query = [
            "nvidia-smi",
            "--query-gpu=name,memory.total,driver_version,pci.bus_id",
            "--format=csv,noheader",
        ]
        smi = subprocess.run(query, capture_output=True, text=True, timeout=60, check=False).stdout.strip()
    return {
        "versions": versions,
        "devices": [
            {
                "name": each.name,
                "gib": round(each.total_memory / 2**30, 1),
                "capability": [each.major, each.minor],
            }
            for each in properties
        ],
        "nvidia_smi": smi,
        "cpus": os.cpu_count(),
    }


def transformer_engine_child() -> dict[str, Any]:
    """Run a layer of Transformer Engine forward and backward, and compare a projection with torch's."""
    import torch  # before transformer_engine, which needs its libraries
    import transformer_engine.pytorch as te

    torch.manual_seed(0)
    where = {"device": "cuda", "dtype": torch.bfloat16}
    inputs = torch.randn(128, 2, 512, requires_grad=True, **where)
    linear = te.Linear(512, 512, bias=False, params_dtype=torch.bfloat16)
    expected = inputs.detach() @ linear.weight.t()
    error = float((linear(inputs) - expected).norm() / expected.norm())
    layer = te.TransformerLayer(512, 1024, 8, params_dtype=torch.bfloat16, self_attn_mask_type="causal")
    output = layer(inputs)
    output.float().pow(2).mean().backward()
    torch.cuda.synchronize()
    gradients = [parameter.grad for parameter in layer.parameters()]
    finite = all(grad is not None and bool(torch.isfinite(grad).all()) for grad in (*gradients, inputs.grad))
    if error > TWO_PERCENT or not finite:
        raise RowFailed(f"linear layer off by {error:.2%}, gradients finite: {finite}")
    return {"linear_relative_error": round(error, 6), "output_norm": round(float(output.float().norm()), 3)}


def all_reduce() -> dict[str, Any]:
    """Add up a tensor over a group of one rank: NCCL on a GPU, gloo elsewhere."""
    import torch
    import torch.distributed as dist

    there = torch.cuda.is_available()
    device = torch.device("cuda", 0) if there else torch.device("cpu")
    backend = "nccl" if there else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    dist.barrier(**({"device_ids": [0]} if there else {}))
    tensor = torch.arange(4.0, device=device)
    dist.all_reduce(tensor)
    found = tensor.tolist()
    dist.destroy_process_group()
    if found != [0.0, 1.0, 2.0, 3.0]:
        raise RowFailed(f"all_reduce of one rank changed the tensor: {found}")
    return {"backend": backend, "device": str(device)}


def settings_child() -> dict[str, Any]:
    """Check the settings of every row for an H200; return the lines that `mb check` prints where it rejects them."""
    import io

    from first_run.table import all_rows
    from mb_config.cli.examination import CommandInput
    from mb_config.preflight.facts import TargetMachine
    from mb_trainer.commands.checks import check
    from mb_trainer.commands.errors import reported

    machine = Machine(out=Path(os.environ["FIRST_RUN_OUT"]), environment=os.environ, gpu=False)
    answers: dict[str, Any] = {}
    for row in all_rows():
        if row.settings is not None:
            os.environ.update(row.environment)
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                recipe, *settings = row.settings
                words = machine.words(
                    [each.format(folder=machine.out) if "{folder}" in each else each for each in settings],
                    recipe=recipe,
                )
                given = CommandInput(arguments=words, out=machine.out / "checked")
                target = TargetMachine(**TARGET)
                code = reported(lambda given=given, target=target: check(given, target=target, as_json=False))
            answers[row.id] = printed.getvalue().splitlines() if code else []
            for name in row.environment:
                del os.environ[name]
    return answers


CHILDREN: Mapping[str, Callable[[], dict[str, Any]]] = {
    "smoke": smoke_child,
    "doctor": doctor_child,
    "transformer_engine": transformer_engine_child,
    "settings": settings_child,
    "in_turn": in_turn_child,
}


def run_child(name: str) -> int:
    """Run a function of `CHILDREN` and leave its values in the folder that the parent names."""
    values = CHILDREN[name]()
    Path(os.environ["FIRST_RUN_OUT"], f"{name}.json").write_text(json.dumps(values))
    print(json.dumps(values))
    return 0
