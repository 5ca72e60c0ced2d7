"""Rows of the tests that need a GPU, worst risk first."""

import ast
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

from first_run.machine import GPU_TESTS
from first_run.row import Row, RowFailed

WORST_FIRST = (
    "test_pretrain_on_gpu.py::test_local_layers_learn",
    "test_families_on_gpu.py::test_a_family_learns_in_bf16",
    "test_speed_on_gpu.py::test_a_step_never_waits_for_the_gpu",
    "test_pretrain_on_gpu.py::test_the_distributed_optimizer_with_both_overlaps_learns",
    "test_pretrain_on_gpu.py::test_a_resume_is_exact",
    "test_speed_on_gpu.py::test_fused_weight_gradients_and_loss_compute_what_the_others_do",
    "test_families_on_gpu.py::test_cuda_graphs_compute_what_the_layers_do",
    "test_speed_on_gpu.py::test_a_save_under_graphs_is_that_of_a_run_without",
    "test_families_on_gpu.py::test_eight_bits_learn_and_resume",
    "test_families_on_gpu.py::test_graphs_in_eight_bits",
    "test_pretrain_on_gpu.py::test_a_save_in_the_background_is_the_same_checkpoint",
    "test_pretrain_on_gpu.py::test_a_checkpoint_goes_to_a_host_without_gpu_and_back",
    "test_families_on_gpu.py::test_adapters_learn",
    "test_families_on_gpu.py::test_attention_kernels_agree",
    "test_measuring_on_gpu.py::test_recording_never_waits_for_the_device",
)
"""Tests by risk; those that are not in this list follow."""
CASES = {
    "test_pretrain_on_gpu.py::test_a_resume_is_exact": (
        "local",
        "local-sharded",
        "transformer-engine",
        "sharded-async",
        "lora",
    ),
    "test_pretrain_on_gpu.py::test_a_checkpoint_goes_to_a_host_without_gpu_and_back": (
        "gpt_tiny",
        "moe_tiny",
        "mla_tiny",
    ),
}
"""Tests of which each case has a row, because together they take longer than a row may."""
OF_PACKAGES = ("packages/mb-metrics/tests", "packages/mb-checkpoint/tests/test_staging.py")
"""Tests of packages that need a GPU."""


def pytest_rows() -> list[Row]:
    """Return a row for each test function of tests/gpu, or for each of its cases, and for the tests of packages."""
    cases = [f"{test}[{case}]" if case else test for test in gpu_tests() for case in CASES.get(test, ("",))]
    return [pytest_row(test) for test in (*cases, *OF_PACKAGES)]


def pytest_row(test: str, *, limit_seconds: float = 150) -> Row:
    """Return a row of one test function of tests/gpu, or of tests of a package that need a GPU."""
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
