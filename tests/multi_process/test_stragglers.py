"""A slow rank of two is named, also after a restart in the same processes and by a timer that was switched on late."""

import random
import socket
import sys
import time
import urllib.request
from contextlib import nullcontext
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import NamedTuple

import pytest
import torch
from runs import metrics, rank_pool

from mb_loop import Callback
from mb_trainer import pretrain
from mb_trainer.requests import read_request

SLOW = 1


class SlowRank(Callback):
    """Makes every forward pass of one rank take longer."""

    def on_train_start(self, context):
        for chunk in context.model if torch.distributed.get_rank() == SLOW else ():
            chunk.register_forward_pre_hook(lambda *_: time.sleep(0.3))


class RequestsToggle(Callback):
    """Requests the opposite state of the timer from rank 0 in each step."""

    def __init__(self, port, out):
        self._port, self._out = port, out

    def on_train_step_start(self, context):
        if torch.distributed.get_rank() == 0:
            token = (self._out / "straggler_token").read_text()
            headers = {"Authorization": f"Bearer {token}"}
            request = urllib.request.Request(f"http://127.0.0.1:{self._port}/", headers=headers)
            urllib.request.urlopen(request, timeout=60).close()


def train(words, out, *callbacks):
    """Train on this rank; return where training ended."""
    rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    place = {"RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_RANK": str(rank)}
    request = read_request(words)
    return pretrain(
        request.config,
        out=out,
        provenance=request.provenance,
        callbacks=callbacks,
        environment=place,
        resume_with_changes=True,
    )


def free_port():
    """Return a free port outside the range of ephemeral ports."""
    while True:
        with socket.socket() as one:
            try:
                one.bind(("", port := random.randrange(61000, 65535)))
            except OSError:
                continue
            return port


@pytest.fixture(scope="module")
def two_ranks():
    with rank_pool(2) as pool:
        yield pool


def stop_and_resume(words, out, port):
    train([*words, "train.exit_interval=2"], out, SlowRank())
    late = [*words, "straggler.enable_straggler_on_startup=false", f"straggler.straggler_ctrlr_port={port}"]
    train([*late, "straggler.straggler_ctrlr=true"], out, SlowRank(), RequestsToggle(port, out))


@pytest.mark.slow
def test_a_slow_rank_is_named_at_each_interval_while_the_timer_is_on(overrides, tmp_path, two_ranks):
    words = [*overrides, "train.train_iters=5", "logger.log_interval=1", "validation.eval_interval=2"]
    words += ["straggler.log_straggler=true", "checkpoint.save_interval=2"]
    two_ranks.run(stop_and_resume, words, tmp_path / "run", free_port())
    rows = {row["step"]: row for row in metrics(tmp_path / "run") if "lm loss" in row}
    slowest = {step: row.get("straggler/slowest-rank") for step, row in rows.items()}
    assert slowest.pop(1) is not None  # on a busy machine, rank 0's first pass may take longer than the sleep
    assert slowest == {2: SLOW, 3: None, 4: SLOW, 5: None}
    reported = [row for row in rows.values() if "straggler/slowest-rank" in row]
    assert all(row["straggler/work-ms-max"] > 300 for row in reported)
    assert all(0 < row["straggler/tflops-min"] < row["straggler/tflops-max"] for row in reported)
    assert not (tmp_path / "run" / "straggler_token").exists()
    log = (tmp_path / "run" / "log.txt").read_text()
    assert log.count("speed of ranks, min to max: work") == 3
    assert log.count(" | backward ") == 3
    assert "nan" not in "".join(line for line in log.splitlines() if "speed of ranks" in line)
    assert log.count("measuring is switched on") == 2  # after steps 3 and 5, and off after step 4


class StragglerId(NamedTuple):
    rank: int


class FakeDetector:
    """NVRx's, as far as it is used: rank 0 has a report after the third step, on which rank 1 is slow."""

    initialized = False
    steps = 0

    def __init__(self):
        self.gpu_relative_perf_scores = {0: 1.0, 1: 0.25}
        self.gpu_individual_perf_scores = {0: 1.0, 1: 1.0}
        self.rank_to_node = {0: "alpha", 1: "beta"}

    def initialize(self, **settings):
        self.initialized = True

    def detection_section(self, name, profile_cuda):
        return nullcontext()

    def generate_report_if_interval_elapsed(self):
        self.steps += 1
        return self if self.is_interval_elapsed() and torch.distributed.get_rank() == 0 else None

    def is_interval_elapsed(self):
        return self.steps == 3

    def shutdown(self):
        self.initialized = False

    def identify_stragglers(self, *, gpu_rel_threshold, gpu_indiv_threshold):
        return {"straggler_gpus_relative": {StragglerId(SLOW)}, "straggler_gpus_individual": set()}


def train_with_fake_detector(words, out):
    """Train on this rank with a stand-in for nvidia-resiliency-ext."""
    detector = FakeDetector()
    for name in ("nvidia_resiliency_ext", "nvidia_resiliency_ext.straggler"):
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__spec__ = ModuleSpec(name, None)
    sys.modules[name].Detector = detector
    outcome = train(words, out)
    return outcome.reason, outcome.step, outcome.saved, outcome.message, detector.initialized


@pytest.mark.slow
def test_all_ranks_leave_after_a_checkpoint_when_one_gpu_is_slow(overrides, tmp_path, two_ranks):
    words = [*overrides, "train.train_iters=9", "validation.eval_interval=null", "validation.eval_iters=0"]
    words += ["nvrx_straggler.enabled=true", "nvrx_straggler.stop_if_detected=true"]
    outcomes = two_ranks.run(train_with_fake_detector, words, tmp_path / "run")
    why = "slow GPUs: rank 1 on beta (score 0.25) is slower than the fastest"
    assert outcomes == [("stragglers", 3, True, f"stopped after step 3: {why}", False)] * 2
    assert (tmp_path / "run" / "checkpoints" / "iter_0000003").is_dir()
    scores = {row["step"]: row.get("gpu_relative_perf/median") for row in metrics(tmp_path / "run")}
    assert scores == {1: None, 2: None, 3: 0.625}
    assert f"warning: {why}" in (tmp_path / "run" / "log.txt").read_text()
