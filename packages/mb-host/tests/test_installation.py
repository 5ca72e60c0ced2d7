"""`install` and `quiet` in a process of their own: answers, errors, and silence."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


def run(script: str) -> subprocess.CompletedProcess:
    """Run a script that sees this folder's modules and no GPU."""
    script = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n{script}"
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False
    )


ANSWERS = """
import mb_host, torch
try:
    mb_host.install(mends=("no_such_fault",))
except ValueError as error:
    print(error)
report = mb_host.install()
print(bool(report), report.reason, mb_host.install(force=True) is report, torch.cuda.is_available(), sep="; ")
"""


def test_without_a_gpu_the_host_stands_in_once_and_for_all():
    lines = run(ANSWERS).stdout.splitlines()
    assert lines[0].startswith("mends: no_such_fault unknown")
    assert lines[1:] == ["True; no GPU is there, so the host stands in for CUDA; True; False"]


# A GPU for machines that have none: only these two questions are asked before the decision.
WITH_A_GPU = """
import mb_host, torch
torch.cuda.is_available, torch.cuda.get_device_name = lambda: True, lambda: "GPU"
empty = torch.empty
report = mb_host.install(force={force})
print(report.active, report.reason, torch.cuda.is_available(), torch.empty is empty, sep="; ")
"""


@pytest.mark.parametrize(
    ("force", "answer"),
    [
        (False, "False; a GPU is there (GPU), so torch is left as it is; True; True"),
        (True, "True; force=True, so the host stands in for CUDA; False; False"),
    ],
)
def test_with_a_gpu_the_host_stands_in_only_by_force(force, answer):
    assert run(WITH_A_GPU.format(force=force)).stdout.strip() == answer


TOO_LATE = """
import mb_host, sys, types
sys.modules["megatron.core"] = types.ModuleType("megatron.core")
try:
    mb_host.install(force=True)
except mb_host.MegatronAlreadyImportedError as error:
    print(isinstance(error, RuntimeError), error)
"""


def test_after_megatron_it_is_too_late():
    assert run(TOO_LATE).stdout.startswith("True mb_host.install: megatron.core is imported already")


SILENT = """
import mb_host
mb_host.install(force=True)
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
from host_gpt import Trainer
from host_layouts import Layout
Trainer(Layout(distributed_optimizer=True)).step(0)
"""


def test_megatron_builds_and_trains_a_gpt_without_a_word(megatron):
    done = run(SILENT)
    assert (done.returncode, done.stderr) == (0, "")


NOT_QUIET = """
import logging, warnings
import mb_host
warnings.simplefilter("always")
logger = logging.getLogger("megatron.core.models.gpt.gpt_model")
logger.warning("GPTModel IS DEPRECATED."), logger.warning("something else")
mb_host.quiet(), mb_host.quiet()
logger.warning("GPTModel IS DEPRECATED."), logger.warning("something new")
"""


def test_only_what_is_named_is_silenced():
    done = run(NOT_QUIET)
    assert done.stderr.splitlines() == ["GPTModel IS DEPRECATED.", "something else", "something new"]
