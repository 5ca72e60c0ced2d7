"""Findings of the doctor from given facts, and the command on this machine."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mb_guard.doctor import Facts, Finding, LostPath, as_data, as_text, exit_code, find_problems, verdict
from mb_guard.fast_paths import FAST_PATHS
from mb_guard.machine import (
    Gpu,
    Machine,
    file_system_of,
    harmful_variables,
    parse_gpu,
    read_gpus,
    read_machine,
)
from mb_guard.nodes import differences
from mb_guard.versions import known_pairs

MACHINE = Machine(
    host="a",
    system="Linux 6",
    glibc="glibc 2.39",
    python="3.12.3",
    cpus=32,
    memory_gib=256.0,
    memory_limit_gib=None,
    shared_memory_gib=64.0,
    open_files=65536,
    locked_memory_kib=-1,
    huge_pages="madvise",
    infiniband=(),
    folder="runs",
    file_system="ext4",
    free_gib=900.0,
)
GPU = Gpu(
    name="NVIDIA H200",
    driver="580.1",
    memory_mib=143771,
    used_mib=4,
    clock_mhz=1980,
    max_clock_mhz=1980,
    slowed_down=False,
    uncorrected_errors=0,
    temperature=30,
)
TORCH = {
    "version": "2.11.0",
    "cuda": "13.0",
    "cudnn": 91900,
    "nccl": "2.28",
    "devices": ["NVIDIA H200"],
    "architectures": ["sm_80", "sm_90"],
    "capabilities": ["sm_90"],
}
HEALTHY = Facts(
    versions={"megatron-core": "0.19.2", "torch": "2.11.0"},
    torch=TORCH,
    machine=MACHINE,
    gpus=(GPU,),
    nvlinks=None,
    environment={},
    faults=(),
    lost=(),
)


def problems(**changes):
    return [(each.level, each.about) for each in find_problems(replace(HEALTHY, **changes))]


def machine(**changes):
    return {"machine": replace(MACHINE, **changes)}


def gpu(**changes):
    return {"gpus": (replace(GPU, **changes),)}


def test_a_healthy_machine_has_no_findings():
    assert (find_problems(HEALTHY), exit_code([]), verdict([])) == ([], 0, "verdict: ready")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"versions": {"torch": "2.11.0"}}, ("warning", "megatron-core")),
        ({"torch": {"error": "no"}}, ("problem", "torch")),
        ({"torch": {**TORCH, "devices": []}}, ("problem", "torch")),
        ({"torch": {**TORCH, "capabilities": ["sm_120"]}}, ("problem", "torch")),
        ({"gpus": ()}, ("note", "GPU")),
        (gpu(uncorrected_errors=2), ("problem", "GPU 0")),
        (gpu(used_mib=5000), ("warning", "GPU 0")),
        (gpu(slowed_down=True), ("problem", "GPU 0")),
        ({"gpus": (GPU, replace(GPU, name="NVIDIA A100"))}, ("warning", "GPUs")),
        ({"gpus": (GPU, GPU), "nvlinks": 0}, ("warning", "NVLink")),
        (machine(shared_memory_gib=0.06), ("problem", "/dev/shm")),
        (machine(shared_memory_gib=0.5), ("warning", "/dev/shm")),
        (machine(open_files=1024), ("warning", "open files")),
        (machine(infiniband=("mlx5_0",), locked_memory_kib=64), ("problem", "locked memory")),
        (machine(cpus=1), ("warning", "CPUs")),
        (machine(huge_pages="never"), ("note", "transparent huge pages")),
        (machine(free_gib=2.0), ("warning", "runs")),
        (machine(file_system="overlay"), ("note", "runs")),
        ({"environment": {"CUDA_LAUNCH_BLOCKING=1": "slow"}}, ("warning", "CUDA_LAUNCH_BLOCKING=1")),
    ],
)
def test_what_is_wrong_is_found(changes, expected):
    assert problems(**changes) == [expected]


def test_a_gpu_runs_kernels_of_a_lower_minor_version():
    assert problems(torch={**TORCH, "capabilities": ["sm_86"]}) == []


def test_a_lost_fast_path_is_a_warning_with_a_gpu():
    [split] = [path for path in FAST_PATHS if "_SplitAlongDim" in path.names]
    lost = LostPath(path=split, reason="has no _SplitAlongDim", installed=True)
    assert problems(lost=(lost,)) == [("warning", "transformer_engine.pytorch.attention")]
    assert problems(lost=(lost,), gpus=(), torch={**TORCH, "devices": []})[-1][0] == "note"
    assert problems(lost=(replace(lost, installed=False),)) == []
    missing = LostPath(path=FAST_PATHS[0], reason="", installed=False)
    assert problems(lost=(missing,)) == [("warning", "transformer_engine.pytorch")]


def test_the_verdict_and_the_exit_code():
    warning = Finding(level="warning", about="x", text="y")
    problem = Finding(level="problem", about="x", text="y", fix="Z.")
    assert (verdict([warning]), exit_code([warning])) == ("verdict: ready, 1 to look at", 0)
    assert verdict([problem, warning]) == "verdict: not ready, 1 problem, 1 to look at"
    assert (exit_code([problem]), str(problem)) == (1, "problem: x: y. Z.")


def test_known_pairs_of_versions():
    assert [
        pair.problem for pair in known_pairs({"megatron-core": "0.19.2", "nvidia-resiliency-ext": "0.4.1"})
    ] == ["importing megatron.core.dist_checkpointing fails"]
    assert known_pairs({"megatron-core": "0.19.2", "nvidia-resiliency-ext": "0.3.0", "torch": "2.11.0"}) == []


def test_a_line_of_nvidia_smi_is_read():
    line = "NVIDIA H200, 580.1, 143771, 4, 1980, 1980, Not Active, 0, 30"
    assert parse_gpu(line) == GPU
    assert parse_gpu(line.replace(" 0, 30", " [N/A], 30")).uncorrected_errors is None


def test_nvidia_smi_is_called(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA H200, 580.1, 143771, 4, 1980, 1980, Not Active, 0, 30'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert read_gpus() == (GPU,)


def test_this_machine_is_read():
    found = read_machine(Path("/no/such/folder"))
    assert (found.folder, found.cpus) == ("/no/such/folder", len(os.sched_getaffinity(0)))


def test_the_longest_mount_point_decides():
    mounts = "overlay / overlay rw 0 0\nserver:/home /data nfs4 rw 0 0\nshm /data/fast tmpfs rw 0 0\n"
    paths = ["/data/runs", "/data/fast/x", "/etc", "/database"]
    kinds = [file_system_of(Path(path), mounts) for path in paths]
    assert kinds == ["nfs4", "tmpfs", "overlay", "overlay"]
    assert (
        file_system_of(Path("/etc"), f"rootfs / rootfs rw 0 0\n{mounts}") == "overlay"
    )  # the last one hides it


def test_a_mount_point_may_have_a_space():
    mounts = "overlay / overlay rw 0 0\nserver:/x /mnt/my\\040disk nfs4 rw 0 0\n"  # as /proc/mounts writes it
    assert file_system_of(Path("/mnt/my disk/runs"), mounts) == "nfs4"


def test_a_folder_that_may_not_be_read_has_the_file_system_of_its_parent(monkeypatch, tmp_path):
    def denied(path):
        if "secret" in path.parts:
            raise PermissionError(13, "Permission denied")
        return True

    monkeypatch.setattr("pathlib.Path.exists", denied)
    assert read_machine(tmp_path / "secret" / "run").free_gib is not None


def test_the_file_system_of_a_linked_folder_is_that_of_its_target(tmp_path):
    (tmp_path / "runs").symlink_to("/proc")
    assert read_machine(tmp_path / "runs" / "new").file_system == "proc"


@pytest.mark.parametrize("infinity", [-1, 2**63 - 1])
def test_a_limit_that_is_not_set_is_minus_one(infinity, monkeypatch, tmp_path):
    monkeypatch.setattr("resource.RLIM_INFINITY", infinity)
    monkeypatch.setattr("resource.getrlimit", lambda kind: (infinity, infinity))
    found = read_machine(tmp_path)
    assert (found.open_files, found.locked_memory_kib) == (-1, -1)


def test_a_single_rank_has_no_slow_all_reduce():
    pytest.importorskip("torch")
    from mb_guard.ranks import Collectives, collective_findings

    pair = Collectives(
        ranks=2,
        backend="nccl",
        mib=64,
        seconds=1.0,
        bus_gb_per_second=0.0,
        wrong_ranks=(),
        slow_ranks={},
    )
    assert [each.about for each in collective_findings(pair, nvlinks=18, nodes=1)] == ["all-reduce"]
    assert collective_findings(replace(pair, ranks=1), nvlinks=18, nodes=1) == []


def test_harmful_variables():
    assert list(harmful_variables({"NCCL_P2P_DISABLE": "1", "NCCL_IB_DISABLE": "0", "HOME": "/"})) == [
        "NCCL_P2P_DISABLE=1"
    ]


def test_differences_between_nodes_come_with_their_hosts():
    node = as_data(HEALTHY, [])
    other = as_data(
        replace(HEALTHY, **machine(host="b", free_gib=1.0), torch={**TORCH, "version": "2.10.0"}), []
    )
    third = as_data(replace(HEALTHY, **machine(host="c")), [])
    assert [str(each) for each in differences([node, other, third])] == [
        "problem: torch.version: differs between nodes: 2.10.0 on b; 2.11.0 on a, c."
    ]
    assert differences([node, third]) == []


def test_the_report_ends_with_the_verdict():
    facts = replace(HEALTHY, **gpu(slowed_down=True))
    findings = find_problems(facts)
    text = as_text(facts, findings)
    assert (
        "GPU 0        NVIDIA H200, driver 580.1, 143771 MiB (4 in use), 1980 of 1980 MHz, 30 degrees" in text
    )
    assert text.endswith("verdict: not ready, 1 problem, 0 to look at")
    assert json.loads(json.dumps(as_data(facts, findings)))["verdict"] == "not ready, 1 problem, 0 to look at"


def run(*arguments, **environment):
    pytest.importorskip("typer")
    return subprocess.run(
        [sys.executable, "-m", "mb_guard", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


def test_the_command_prints_json():
    done = run("doctor", "--json", CUDA_VISIBLE_DEVICES="")
    data = json.loads(done.stdout)
    assert done.returncode == ("problem" in {each["level"] for each in data["findings"]})
    assert set(data["faults"].values()) <= {
        *("pending", "not needed", "not installed", "to know", "refused", "other version", "unknown source")
    }


def test_the_command_works_without_torch(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')\n")
    done = run("doctor", PYTHONPATH=f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    assert "cannot be imported: ImportError: no torch here" in done.stdout
    assert "verdict: " in done.stdout


def test_an_import_that_crashes_is_a_finding(tmp_path):
    (tmp_path / "torch.py").write_text("import os; os.abort()\n")
    done = run("doctor", PYTHONPATH=f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    assert "cannot be imported: exit code -6" in done.stdout


def test_check_lists_the_faults_that_a_command_line_meets():
    flags = ["--multi-latent-attention", "--tensor-model-parallel-size", "2", "--transformer-impl", "local"]
    done = run("check", *flags)
    assert done.stdout.startswith("rotary-key-gradient (wrong number): ")
    assert done.stdout.splitlines()[-1].startswith("1 of ")
    assert run("check", "missing.sh").returncode == 2


def test_faults_are_listed():
    assert "weak-backward-hooks (lost run): " in run("faults").stdout
    ids = [each["id"] for each in json.loads(run("faults", "--json").stdout)]
    assert "split-along-dim" in ids


@pytest.mark.slow
def test_two_ranks_check_a_sum_together():
    pytest.importorskip("torch.distributed")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    done = subprocess.run(
        [*command, "-m", "mb_guard", "doctor", "--json"],
        capture_output=True,
        text=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    data = json.loads(done.stdout.strip().splitlines()[-1])
    assert (len(data["nodes"]), data["collectives"]["ranks"]) == (1, 2)
    assert data["collectives"]["wrong_ranks"] == []
