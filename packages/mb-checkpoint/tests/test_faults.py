"""Kills, full disks, permission and read errors at the file operations of saves and loads: no checkpoint is ever lost.

Runs a sample of all points. All of them (under Megatron-FSDP one in 61) take about an hour: MB_ALL_FAULTS=1 pytest
test_faults.py
"""

import os

import fault_points

ALL = "MB_ALL_FAULTS" in os.environ
PART = {"1:async": 61, "1:load": 41, "2:sync": 131, "2:async": 131, "2:load": 71}
TORCH = {"2:torch-sync": 211, "2:torch-async": 211, "2:torch-load": 131}
"""Without Megatron, in a loop of PyTorch."""
ALONE = {"1:sync": 61, "1:torch-sync": 131, "1:torch-async": 131}
"""On one rank, which does what rank 0 of two does but for the collectives."""
PRUNE = {"1:sync-prune": 11, "1:async-prune": 17, "2:async-prune": 41, "1:torch-async-prune": 41}
"""After the commit, while the old checkpoint is deleted; if all points are run, these are among them."""
FSDP = {"2:fsdp-sync": 61, "2:fsdp-async": 61, "2:fsdp-load": 61} if ALL else {"2:fsdp-sync": 211}
"""Under Megatron-FSDP other tensors are planned and the same code writes them; a point costs twenty times as much."""


def test_after_trouble_at_any_file_operation_a_run_resumes_and_nothing_committed_is_lost(
    fork_server, tmp_path
):
    plain = {
        name: 1 if ALL else stride for name, stride in (PART | TORCH | (ALONE if ALL else PRUNE)).items()
    }
    wanted = [f"{name}:{stride}" for name, stride in (plain | FSDP).items()]
    found = fork_server.call(
        fault_points.matrices, tmp_path, wanted, timeout_seconds=4 * 3600 if ALL else 1200
    )
    print({name: each["by"] for name, each in found.items()})
    assert [problem for each in found.values() for problem in each["problems"]] == []
    assert sum(each["points"] for each in found.values()) > (3000 if ALL else 60)
