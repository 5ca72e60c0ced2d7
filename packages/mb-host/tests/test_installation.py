"""`install` and `quiet` in separate processes: reports, errors, and filtered messages."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def run(script: str) -> subprocess.CompletedProcess:
    """Run a script that can import this folder's modules and has no GPU."""
    script = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n{script}"
    env = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        # a warning of torch if nvidia-resiliency-ext, which requires pynvml, is installed
        "PYTHONWARNINGS": "ignore:The pynvml package is deprecated:FutureWarning",
    }
    return subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def values():
    return json.loads(run("import host_installs; host_installs.main()").stdout)


def test_without_a_gpu_cuda_calls_run_on_the_cpu(values):
    assert values["plain"] == [True, "no GPU is available, so CUDA calls run on the CPU", True, False]


def test_with_a_gpu_torch_is_not_changed(values):
    assert values["with_gpu"] == [False, "a GPU is available (GPU), so torch is not changed", True, True]


def test_with_a_gpu_no_rank_is_forked(values):
    assert values["with_gpu_forked"] == ["a GPU is available (GPU), so torch is not changed"]


def test_with_force_cuda_calls_run_on_the_cpu_despite_a_gpu(values):
    assert values["forced"] == [True, "force=True, so CUDA calls run on the CPU", False, False]


def test_without_a_gpu_packages_of_gpu_kernels_are_not_imported(values):
    assert values["with_gpu_packages"] == [None, "ModuleNotFoundError", "ModuleNotFoundError"]
    assert values["left_with_gpu"] == [True]


def test_with_a_gpu_megatron_is_not_patched(values):
    assert values["patched_with_gpu"] == [[]]


@pytest.mark.parametrize("machine", ["arithmetic", "arithmetic_with_gpu"])
def test_threads_and_kernels_are_fixed_before_any_parallel_region(values, machine):
    found = values[machine]
    assert found["dynamic"] == [True, False]
    assert all(found["vector math"])
    assert found["team"] == [1, 1]


def test_index_additions_of_several_threads_are_deterministic(values):
    off, warns, raises = 0, 1, 2
    assert values["index_additions"] == [off, warns, raises, True]


def test_install_after_the_import_of_megatron_is_an_error(values):
    is_runtime_error, message = values["after_megatron"]
    assert is_runtime_error
    assert message.startswith("mb_host.install: megatron.core is already imported")
    assert "Put `import mb_host; mb_host.install()` at the top" in message


def test_install_before_megatron_runs_when_megatron_is_imported_and_not_when_it_is_searched(values):
    assert values["before_megatron"] == [False, False, True, "cpu", True]


def test_install_before_megatron_has_no_effect_on_an_imported_megatron(values):
    assert values["before_imported_megatron"] == [True]


def test_an_unknown_patch_is_rejected(values):
    [message] = values["unknown_patch"]
    assert message.startswith("patches: no_such_fault: no patch of that name")


SILENT = """
import mb_host
mb_host.install(force=True)
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
from host_gpt import Trainer
from host_layouts import Layout
trainer = Trainer(Layout(distributed_optimizer=True))
trainer.step(0)
# a gloo thread that outlives the interpreter aborts it, and lives as long as its group is referenced
import gc
from megatron.core import parallel_state
del trainer
parallel_state.destroy_model_parallel()
dist.destroy_process_group()
gc.collect()
"""


def test_megatron_builds_and_trains_a_gpt_without_messages(megatron):
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


def test_only_listed_messages_are_filtered():
    done = run(NOT_QUIET)
    assert done.stderr.splitlines() == ["GPTModel IS DEPRECATED.", "something else", "something new"]
