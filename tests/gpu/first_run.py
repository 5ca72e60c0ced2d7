"""First run on a machine with a GPU: a table of checks, worst risk first, that needs plain `python3` and no network.

    python3 tests/gpu/first_run.py [--packages DIR] [--out DIR] [--rows PATTERN] [--deadline SECONDS] [--dry-run]

`--packages DIR` is a folder of packages that the machine lacks: site-packages to add to the path, or a folder with an
`install.sh` that unpacks them into $ROOT/site and writes $ROOT/te_env.sh. Each row is a process of its own with a time
limit, and the next row follows whatever happens. Standard output has one JSON object per row, standard error the same
for people, and a table at the end. The exit code is 0 when no row failed, else 1.

`--dry-run` hides the GPU: what can run on the CPU runs in a small size, and the settings of every other row are checked
for an H200 with `mb check` before the row is skipped.
"""

import argparse
import ast
import contextlib
import fnmatch
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tomllib

REPOSITORY = Path(__file__).resolve().parents[2]
GPU_TESTS = REPOSITORY / "tests" / "gpu"
STEPS = 20
TARGET: Mapping[str, Any] = {"gpu": "h200", "transformer_engine": "2.20"}
"""GPU and versions for which a dry run checks the settings."""
TAIL_LINES = 40
NO_GPU = "there is no CUDA device"
TWO_PERCENT = 0.02

LOCAL = ("model.transformer_impl=local",)
BF16 = ("mixed_precision=bf16_mixed",)
SHARDED = ("ddp.use_distributed_optimizer=true", "optimizer.use_distributed_optimizer=true")
DETERMINISTIC = ("model.deterministic_mode=true", "model.cross_entropy_loss_fusion=false")
DROPOUT = ("model.hidden_dropout=0.1",)
LAYER_GRAPHS = (
    "model.cuda_graph_impl=transformer_engine",
    "model.cuda_graph_warmup_steps=3",
    "rerun_state_machine.check_for_nan_in_loss=false",
)
WHOLE_GRAPH = ("model.cuda_graph_impl=full_iteration", *LAYER_GRAPHS[1:])
SAME_WEIGHTS = ("model.use_cpu_initialization=true",)
TRAINED = (
    f"train.train_iters={STEPS}",
    "validation.eval_interval=null",
    "checkpoint.save_interval=10",
    "logger.log_interval=5",
)
SMALL = (
    "dataset.vocab_size=300",
    "dataset.seq_length=32",
    "model.seq_length=32",
    "model.num_layers=1",
    "model.hidden_size=32",
    "model.ffn_hidden_size=64",
    "model.num_attention_heads=4",
    "model.num_query_groups=2",
    "scheduler.lr_warmup_iters=2",
)
"""The recipe gpt_tiny so small that a step takes milliseconds on a CPU."""
HIDDEN_PACKAGES = ("transformer_engine", "transformer_engine_torch", "apex", "amp_C")
"""Packages that a row without them cannot import."""

WORST_FIRST = (
    "test_pretrain_on_gpu.py::test_local_layers_learn",
    "test_families_on_gpu.py::test_a_family_learns_in_bf16",
    "test_pretrain_on_gpu.py::test_the_distributed_optimizer_with_both_overlaps_learns",
    "test_pretrain_on_gpu.py::test_a_resume_is_exact",
    "test_families_on_gpu.py::test_cuda_graphs_compute_what_the_layers_do",
    "test_families_on_gpu.py::test_eight_bits_learn_and_resume",
    "test_families_on_gpu.py::test_graphs_in_eight_bits",
    "test_pretrain_on_gpu.py::test_a_save_in_the_background_is_the_same_checkpoint",
    "test_pretrain_on_gpu.py::test_a_checkpoint_goes_to_a_host_without_gpu_and_back",
    "test_families_on_gpu.py::test_adapters_learn",
    "test_families_on_gpu.py::test_attention_kernels_agree",
    "test_measuring_on_gpu.py::test_recording_never_waits_for_the_device",
)
"""Tests by risk; those that are not in this list follow."""


class RowFailed(Exception):
    """A check of a row does not hold; the text is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Output folder and environment of the rows, and whether there is a GPU."""

    out: Path
    environment: Mapping[str, str]
    gpu: bool

    def trained(self, row: str) -> Path:
        """Return the run folder of a row that trains."""
        return self.out / "runs" / row

    def words(self, words: Sequence[str]) -> list[str]:
        """Return the arguments of a command that trains: with the data folder of this run, small without a GPU."""
        data = [f"dataset.cache_dir={self.out / 'data'}"]
        corpus = [] if self.gpu else [f"dataset.sources=[{GPU_TESTS.parent}]", *SMALL]
        return ["gpt_tiny", *data, *corpus, *words]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One check: a process, its time limit, and what must hold when it has ended."""

    id: str
    limit_seconds: float
    command: Callable[[Machine], Sequence[str]]
    environment: Mapping[str, str] = field(default_factory=dict)
    check: Callable[[Machine], dict[str, Any]] | None = None
    """Return values for the table, or raise RowFailed."""
    needs: tuple[str, ...] = ()
    """"gpu", or modules that must be installed."""
    settings: tuple[str, ...] | None = None
    """Overrides of gpt_tiny, for `mb check` in a dry run."""
    without: tuple[str, ...] = ()
    """Packages that cannot be imported in this row."""


# --- rows


def mb(*arguments: str) -> list[str]:
    """Return the command line of `mb`."""
    return [sys.executable, "-W", "ignore", "-m", "mb_trainer", *arguments]


def in_a_child(name: str) -> Callable[[Machine], Sequence[str]]:
    """Return a command that runs a function of `CHILDREN`."""
    return lambda machine: [sys.executable, "-W", "ignore", __file__, "--child", name]


def pretrain_row(row: str, *settings: str, **fields: Any) -> Row:
    """Return a row that trains 20 steps and compares the losses with those of the CPU."""
    return Row(
        id=row,
        command=lambda machine: mb("pretrain", *machine.words((*TRAINED, *settings)), *out_of(machine, row)),
        settings=(*TRAINED, *settings),
        **fields,
    )


def out_of(machine: Machine, row: str) -> list[str]:
    """Return the option that names the run folder of a row."""
    return ["--out", str(machine.trained(row))]


def resume_row(row: str, *settings: str, **fields: Any) -> Row:
    """Return a row that proves a resume on the GPU bit for bit: straight and cut at a checkpoint."""
    words = (*DETERMINISTIC, *settings)
    return Row(
        id=row,
        limit_seconds=400,
        command=lambda machine: mb("verify-resume", *machine.words(words), "--steps", "8", "--cut", "4"),
        environment={"NCCL_ALGO": "Ring"},
        settings=words,
        **{"needs": ("gpu",), **fields},
    )


def pytest_row(test: str, *, limit_seconds: float = 400) -> Row:
    """Return a row of one test function of tests/gpu, or of a folder of tests that need a GPU."""
    path = f"tests/gpu/{test}" if "::" in test else test
    row = f"pytest.{test.partition('::')[2] or test}"
    report = f"{row.replace('/', '_')}.xml"
    return Row(
        id=row,
        limit_seconds=limit_seconds,
        command=lambda machine: [
            *(sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-p", "no:cacheprovider"),
            f"--junitxml={machine.out / report}",
            path,
        ],
        check=lambda machine: outcomes_of(machine.out / report),
        needs=("gpu", "pytest", "hypothesis"),
    )


def rows() -> list[Row]:
    """Return the table, worst risk first."""
    loose = {"limit_seconds": 300, "needs": ("gpu",)}
    engine = ("gpu", "transformer_engine")
    return [
        Row(
            id="smoke",
            limit_seconds=180,
            command=in_a_child("smoke"),
            check=lambda machine: need_gpu(machine, values_of(machine, "smoke")),
        ),
        Row(
            id="transformer_engine",
            limit_seconds=180,
            command=in_a_child("transformer_engine"),
            check=lambda machine: values_of(machine, "transformer_engine"),
            needs=engine,
        ),
        pretrain_row(
            "train.cpu",
            *SAME_WEIGHTS,
            limit_seconds=300,
            environment={"CUDA_VISIBLE_DEVICES": ""},
            check=lambda machine: compared(machine, "train.cpu"),
        ),
        pretrain_row("train.gpu", check=lambda machine: compared(machine, "train.gpu", last=0.1), **loose),
        pretrain_row(
            "train.gpu_same_weights",
            *SAME_WEIGHTS,
            check=lambda machine: compared(machine, "train.gpu_same_weights", every=TWO_PERCENT),
            **loose,
        ),
        resume_row("resume.local", *LOCAL, *DROPOUT),
        resume_row("resume.local_distributed_optimizer", *LOCAL, *SHARDED, *DROPOUT),
        resume_row("resume.without_transformer_engine", *LOCAL, *SHARDED, *DROPOUT, without=HIDDEN_PACKAGES),
        resume_row("resume.transformer_engine", *BF16, *DROPOUT, needs=engine),
        resume_row("resume.transformer_engine_sharded", *BF16, *SHARDED, *DROPOUT, needs=engine),
        resume_row("graphs.layers_saved_and_resumed", *BF16, *LAYER_GRAPHS, needs=engine),
        resume_row("graphs.whole_step_saved_and_resumed", *BF16, *WHOLE_GRAPH, needs=engine),
        *(pytest_row(test) for test in gpu_tests()),
        pytest_row("packages/mb-metrics/tests"),
    ]


def gpu_tests() -> list[str]:
    """Return the test functions of tests/gpu, those of `WORST_FIRST` first.

    Raises:
        SystemExit: A test of that list is not there.
    """
    found = [
        f"{file.name}::{node.name}"
        for file in sorted(GPU_TESTS.glob("test_*.py"))
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
    if missing := sorted({*WORST_FIRST} - {*found}):
        raise SystemExit(f"{__file__}: WORST_FIRST names tests that are not there: {', '.join(missing)}")
    return [*WORST_FIRST, *(test for test in found if test not in WORST_FIRST)]


# --- checks


def need_gpu(machine: Machine, values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of the first row, which must list a GPU unless it is hidden."""
    if machine.gpu and not values["devices"]:
        raise RowFailed(f"{NO_GPU}: torch {values['versions'].get('torch')} sees none")
    return values


def values_of(machine: Machine, child: str) -> dict[str, Any]:
    """Return what a child has left."""
    values: dict[str, Any] = json.loads((machine.out / f"{child}.json").read_text())
    return values


def losses_of(run: Path) -> dict[int, float]:
    """Return the losses of a run by step."""
    rows_ = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: row["lm loss"] for row in rows_ if "lm loss" in row}


def compared(
    machine: Machine, row: str, *, every: float | None = None, last: float | None = None
) -> dict[str, Any]:
    """Return the losses of a run and those of the CPU, with the largest relative difference.

    Args:
        machine: Has the run folders.
        row: Of the run.
        every: Largest relative difference that is allowed in any step.
        last: The same for the last step alone, where weights were drawn from other random streams.

    Raises:
        RowFailed: The run has not all steps, a loss is not finite or did not fall, or the difference is larger.
    """
    losses = losses_of(machine.trained(row))
    values: dict[str, Any] = {"losses": rounded(losses)}
    first, end = losses.get(1), losses.get(STEPS)
    if first is None or end is None or not end < first < float("inf"):
        raise RowFailed(f"the loss did not fall in {STEPS} steps: {values['losses']}")
    if row == "train.cpu":
        return values
    if not (machine.trained("train.cpu") / "metrics.jsonl").exists():
        return {**values, "cpu": None}
    cpu = losses_of(machine.trained("train.cpu"))
    apart = {step: abs(losses[step] - cpu[step]) / cpu[step] for step in losses.keys() & cpu.keys()}
    values |= {"cpu": rounded(cpu), "largest_difference": round(max(apart.values()), 5)}
    bounds = dict.fromkeys(apart, every) if every is not None else {STEPS: last}
    for step, bound in bounds.items():
        if bound is not None and apart[step] > bound:
            found = f"{losses[step]:.4f} on the GPU, {cpu[step]:.4f} on the CPU"
            raise RowFailed(
                f"step {step}: the losses are {apart[step]:.1%} apart, above {bound:.0%} ({found})"
            )
    return values


def rounded(losses: Mapping[int, float]) -> list[float]:
    """Return losses in the order of their steps, short enough for a table."""
    return [round(losses[step], 4) for step in sorted(losses)]


def outcomes_of(report: Path) -> dict[str, Any]:
    """Return how many tests passed, failed and were skipped, with the failures' first lines and the reasons."""
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    notes: dict[str, str] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        bad = [each for each in case if each.tag in ("failure", "error")]
        skipped = case.find("skipped")
        status = "failed" if bad else "passed" if skipped is None else "skipped"
        counts[status] += 1
        for each in [*bad, *([] if skipped is None else [skipped])]:
            notes[case.get("name", "")] = (each.get("message") or "").splitlines()[0][:300]
    if counts["failed"] or not any(counts.values()):
        raise RowFailed(f"{counts}: {notes}")
    return {**counts, "notes": notes}


# --- children: functions that run in a separate process and import torch


def smoke_child() -> dict[str, Any]:
    """Return versions, devices and the result of a collective; print what is known before the collective starts."""
    found = devices()
    print(json.dumps(found), flush=True)
    return {**found, "all_reduce": all_reduce()}


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

    from mb_config.cli_check import CommandInput, check
    from mb_config.facts import TargetMachine
    from mb_trainer.commands.errors import reported
    from mb_trainer.config_program import program

    machine = Machine(out=Path(os.environ["FIRST_RUN_OUT"]), environment=os.environ, gpu=False)
    answers: dict[str, Any] = {}
    for row in rows():
        if row.settings is not None:
            os.environ.update(row.environment)
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                given = CommandInput(arguments=machine.words(row.settings), out=machine.out / "checked")
                target = TargetMachine(**TARGET)
                code = reported(
                    lambda given=given, target=target: check(program(), given, target=target, as_json=False)
                )
            answers[row.id] = printed.getvalue().splitlines() if code else []
            for name in row.environment:
                del os.environ[name]
    return answers


CHILDREN: Mapping[str, Callable[[], dict[str, Any]]] = {
    "smoke": smoke_child,
    "transformer_engine": transformer_engine_child,
    "settings": settings_child,
}


def run_child(name: str) -> int:
    """Run a function of `CHILDREN` and leave its values in the folder that the parent names."""
    values = CHILDREN[name]()
    Path(os.environ["FIRST_RUN_OUT"], f"{name}.json").write_text(json.dumps(values))
    print(json.dumps(values))
    return 0


# --- the machine: packages that are brought along, and the path to the repository's own


def prepare(out: Path, packages: Path | None, *, dry_run: bool) -> Machine:
    """Install the packages that are brought along, and return what the rows run with.

    Raises:
        RowFailed: install.sh failed, or there is no such folder.
    """
    environment = dict(os.environ)
    added: list[str] = []
    if packages is not None:
        if not packages.is_dir():
            raise RowFailed(
                f"--packages: {packages} is no folder. Name one with packages, or with an install.sh."
            )
        if (packages / "install.sh").exists():
            environment = installed(packages / "install.sh", root=out / "packages")
        else:
            added = [str(packages)]
    sources = [*sorted(map(str, REPOSITORY.glob("packages/*/src"))), str(REPOSITORY / "meta" / "src")]
    given = [part for part in environment.get("PYTHONPATH", "").split(os.pathsep) if part]
    path = [*sources, *added, *given, str(describe_packages(out / "metadata"))]
    environment |= {"PYTHONPATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1", "FIRST_RUN_OUT": str(out)}
    if dry_run:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    sys.path[:0] = path  # for find_spec
    return Machine(out=out, environment=environment, gpu=not dry_run)


def installed(script: Path, *, root: Path) -> dict[str, str]:
    """Run install.sh and return the environment that its te_env.sh sets."""
    root.mkdir(parents=True, exist_ok=True)
    shell = f"bash {shlex.quote(str(script))} >&2; . {shlex.quote(str(root))}/te_env.sh && env -0"
    done = subprocess.run(
        ["bash", "-c", shell], env={**os.environ, "ROOT": str(root)}, stdout=subprocess.PIPE, check=False
    )
    if done.returncode != 0:
        raise RowFailed(
            f"{script}: no environment in {root}/te_env.sh (exit code {done.returncode}); see stderr"
        )
    return dict(each.split("=", 1) for each in done.stdout.decode().split("\0") if "=" in each)


def describe_packages(folder: Path) -> Path:
    """Write the metadata of the repository's packages, whose versions a checkpoint records; return the folder."""
    for file in (*REPOSITORY.glob("packages/*/pyproject.toml"), REPOSITORY / "meta" / "pyproject.toml"):
        project = tomllib.loads(file.read_text())["project"]
        name, version = project["name"], project["version"]
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return folder


def without_packages(folder: Path, names: Sequence[str]) -> str:
    """Return a folder for the head of the path, in whose presence packages can be neither imported nor found.

    Python imports `sitecustomize` when it starts, in the processes that a row starts, too. None in `sys.modules` marks
    a module that is not there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(
        f"import sys\n\nsys.modules.update(dict.fromkeys({list(names)!r}))\n"
    )
    return str(folder)


# --- running


def run_row(row: Row, machine: Machine) -> dict[str, Any]:
    """Run a row and return its line of the table."""
    missing = [each for each in row.needs if each != "gpu" and find_spec(each) is None]
    if "gpu" in row.needs and not machine.gpu:
        return skipped_without_gpu(row, machine)
    if missing:
        return {"status": "skipped", "reason": f"not installed: {', '.join(missing)}"}
    log = machine.out / "logs" / f"{row.id.replace('/', '_')}.txt"
    shutil.rmtree(
        machine.trained(row.id), ignore_errors=True
    )  # a run there would be complete, and do nothing
    environment = {**machine.environment, **row.environment}
    if row.without:
        hidden = without_packages(machine.out / "hidden", row.without)
        environment["PYTHONPATH"] = os.pathsep.join([hidden, environment["PYTHONPATH"]])
    code = run_process(row.command(machine), environment=environment, log=log, limit=row.limit_seconds)
    if code is None:
        reason = f"still running after {row.limit_seconds:g} s, and killed"
        return {"status": "failed", "reason": reason, "output": tail(log)}
    try:
        values = row.check(machine) if row.check is not None and (code == 0 or "pytest" in row.needs) else {}
    except (RowFailed, OSError, ValueError, KeyError, ElementTree.ParseError) as error:
        reason = str(error) if isinstance(error, RowFailed) else f"{type(error).__name__}: {error}"
        return {"status": "failed", "reason": reason, "output": tail(log)}
    if code != 0:
        return {"status": "failed", "reason": f"exit code {code}", "output": tail(log)}
    if values.get("skipped") and not values.get("passed"):
        reasons = "; ".join(dict.fromkeys(values["notes"].values()))
        return {"status": "skipped", "reason": reasons, "values": values}
    return {"status": "passed", "values": values}


def skipped_without_gpu(row: Row, machine: Machine) -> dict[str, Any]:
    """Return the line of a row that needs a GPU; its settings are checked all the same, those of all rows at once."""
    if row.settings is None:
        return {"status": "skipped", "reason": NO_GPU}
    answers = machine.out / "settings.json"
    if not answers.exists():
        log = machine.out / "logs" / "settings.txt"
        run_process(in_a_child("settings")(machine), environment=machine.environment, log=log, limit=300)
    rejected = json.loads(answers.read_text())[row.id]
    if rejected:
        return {"status": "failed", "reason": "mb check rejects the settings", "output": rejected}
    return {"status": "skipped", "reason": f"{NO_GPU}; mb check accepts the settings"}


def run_process(
    command: Sequence[str], *, environment: Mapping[str, str], log: Path, limit: float
) -> int | None:
    """Run a command in a separate session, with its output in a file; return its exit code, None if it was killed."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as stream:
        process = subprocess.Popen(
            command,
            env=dict(environment),
            cwd=REPOSITORY,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            end_session(process)


def end_session(process: subprocess.Popen[bytes]) -> None:
    """Kill what a row has left running, and wait for its first process."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def tail(log: Path) -> list[str]:
    """Return the end of a log."""
    return log.read_text(errors="replace").splitlines()[-TAIL_LINES:]


def table(
    machine: Machine, chosen: Sequence[Row], *, ends: float, clock: Callable[[], float] = time.monotonic
) -> Iterator[dict[str, Any]]:
    """Run the rows one after the other and yield their lines; those that the deadline leaves no time are skipped."""
    for row in chosen:
        began = clock()
        if began > ends:
            line: dict[str, Any] = {"status": "skipped", "reason": "the deadline has passed"}
        else:
            try:
                line = run_row(row, machine)
            except Exception as error:  # noqa: BLE001 - the next row follows whatever happens
                line = {"status": "failed", "reason": f"{type(error).__name__}: {error}"}
        yield {"row": row.id, "seconds": round(clock() - began, 1), **line}


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--packages", type=Path, metavar="DIR", help="packages that the machine lacks")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="logs, runs and results; default: a temporary folder"
    )
    parser.add_argument(
        "--rows", action="append", metavar="PATTERN", help="rows to run, as resume.*; repeatable"
    )
    parser.add_argument(
        "--deadline", type=float, default=float("inf"), metavar="SECONDS", help="start no row after"
    )
    parser.add_argument("--dry-run", action="store_true", help="hide the GPU")
    parser.add_argument("--list", action="store_true", help="print the ids of the rows")
    parser.add_argument("--child", choices=sorted(CHILDREN), help=argparse.SUPPRESS)
    return parser


def main() -> int:
    """Run the table; return 0 when no row failed."""
    options = arguments().parse_args()
    if options.child is not None:
        return run_child(options.child)
    chosen = [row for row in rows() if any(fnmatch.fnmatch(row.id, each) for each in options.rows or ["*"])]
    if not chosen:
        raise SystemExit(f"--rows: no row matches {', '.join(options.rows)}. --list prints the rows.")
    if options.list:
        print(*(row.id for row in chosen), sep="\n")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # which ends the row that runs
    ends = time.monotonic() + options.deadline
    out = (options.out or Path(tempfile.mkdtemp(prefix="first-run-"))).resolve()
    out.mkdir(parents=True, exist_ok=True)
    lines = []
    with (out / "results.jsonl").open("a") as results:

        def report(line: dict[str, Any]) -> None:
            lines.append(line)
            text = json.dumps(line)
            print(text, flush=True)
            print(text, file=results, flush=True)
            print(f"{line['status']:8}{line['seconds']:7.1f} s  {line['row']}", file=sys.stderr, flush=True)

        began = time.monotonic()
        try:
            machine = prepare(out, options.packages, dry_run=options.dry_run)
        except (RowFailed, OSError) as error:
            report(
                {
                    "row": "packages",
                    "seconds": round(time.monotonic() - began, 1),
                    "status": "failed",
                    "reason": str(error),
                }
            )
            return 1
        for line in table(machine, chosen, ends=ends):
            report(line)
    print(f"\n{summary(lines)}\nlogs: {out / 'logs'}", file=sys.stderr)
    return int(any(line["status"] == "failed" for line in lines))


def summary(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return the table in a readable form."""
    width = max(len(line["row"]) for line in lines)
    counted = {
        status: sum(line["status"] == status for line in lines) for status in ("passed", "failed", "skipped")
    }
    parts = []
    for line in lines:
        reason = str(line.get("reason", "")).partition("\n")[0][:100]
        parts.append(f"{line['status']:8} {line['row']:{width}} {line['seconds']:7.1f} s  {reason}".rstrip())
    return "\n".join([*parts, ", ".join(f"{number} {status}" for status, number in counted.items())])


if __name__ == "__main__":
    sys.exit(main())
