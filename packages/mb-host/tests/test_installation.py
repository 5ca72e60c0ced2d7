"""`install` and `quiet` in a process of their own: answers, errors, and silence."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def run(script: str) -> subprocess.CompletedProcess:
    """Run a script that sees this folder's modules and no GPU."""
    script = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n{script}"
    env = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        # torch's own warning where nvidia-resiliency-ext, which requires pynvml, is installed as well
        "PYTHONWARNINGS": "ignore:The pynvml package is deprecated:FutureWarning",
    }
    return subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def answers():
    return json.loads(run("import host_installs; host_installs.main()").stdout)


def test_without_a_gpu_the_host_stands_in_once_and_for_all(answers):
    assert answers["plain"] == [True, "no GPU is there, so the host stands in for CUDA", True, False]


def test_with_a_gpu_torch_is_left_as_it_is(answers):
    assert answers["with_gpu"] == [False, "a GPU is there (GPU), so torch is left as it is", True, True]


def test_with_a_gpu_no_rank_is_forked(answers):
    assert answers["with_gpu_forked"] == ["a GPU is there (GPU), so torch is left as it is"]


def test_with_a_gpu_the_host_stands_in_by_force(answers):
    assert answers["forced"] == [True, "force=True, so the host stands in for CUDA", False, False]


def test_without_a_gpu_packages_of_gpu_kernels_are_not_imported(answers):
    assert answers["with_gpu_packages"] == [None, "ModuleNotFoundError", "ModuleNotFoundError"]
    assert answers["left_with_gpu"] == [True]


def test_with_a_gpu_megatron_is_patched_for_optimizers_of_torch_alone(answers):
    assert answers["patched_with_gpu"] == [
        ["allocate_optimizer_state"],
        ["separate_step_tensors"],
        ["exclude_step_tensor", "load_without_grad"],
        [],
    ]
    assert answers["patched_with_gpu_and_apex"] == [[], [], [], []]


@pytest.mark.parametrize("machine", ["arithmetic", "arithmetic_with_gpu"])
def test_threads_and_kernels_are_fixed_before_any_parallel_region(answers, machine):
    found = answers[machine]
    assert found["dynamic"] == [True, False]
    assert all(found["vector math"])
    assert found["team"] == [1, 1]


def test_several_threads_add_by_index_in_a_fixed_order(answers):
    off, warns, raises = 0, 1, 2
    assert answers["sums_by_index"] == [off, warns, raises, True]


def test_after_megatron_it_is_too_late(answers):
    is_runtime_error, message = answers["after_megatron"]
    assert is_runtime_error
    assert message.startswith("mb_host.install: megatron.core is imported already")


def test_an_unknown_mend_is_refused(answers):
    [message] = answers["unknown_patch"]
    assert message.startswith("patches: no_such_fault unknown")


SILENT = """
import mb_host
mb_host.install(force=True)
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
from host_gpt import Trainer
from host_layouts import Layout
trainer = Trainer(Layout(distributed_optimizer=True))
trainer.step(0)
# a thread of gloo that outlives the interpreter aborts it, and lives as long as anybody holds its group
import gc
from megatron.core import parallel_state
del trainer
parallel_state.destroy_model_parallel()
dist.destroy_process_group()
gc.collect()
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
