"""The trainer of meta/examples that is built of the parts alone: alone and on two ranks, stopped and resumed."""

import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from runs import losses, run_ranks

SCRIPT = Path(__file__).parents[2] / "meta" / "examples" / "whole_trainer.py"
LAYOUTS = {
    "one process": (1, []),
    "DP2": (2, ["ddp.use_distributed_optimizer=true"]),
    "TP2": (2, ["model.tensor_model_parallel_size=2"]),
    "PP2": (2, ["model.pipeline_model_parallel_size=2", "model.num_layers=2"]),
}
STOPPED = 12
"""Step in which the signal arrives; several ranks agree on a later one."""


class SignalOnLastRank:
    """Callback that sends SIGTERM to the last rank in a step, as a scheduler does."""

    def on_train_step_start(self, context):
        last = int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1
        if last and context.state.train_state.step == STOPPED - 1:
            os.kill(os.getpid(), signal.SIGTERM)


def all_ways(folder, words):
    """Train undisturbed, stopped and resumed, and with the command; return how each ended."""
    from mb_trainer import pretrain
    from mb_trainer.requests import read_request

    main = runpy.run_path(str(SCRIPT))["main"]

    def start(number, *arguments):
        # as a launcher does: the ranks keep their store, in which an earlier run has left its agreed stop
        os.environ["TORCHELASTIC_RESTART_COUNT"] = str(number)
        return main(*arguments)

    ended = [
        start(0, folder / "straight", words),
        start(1, folder / "run", words, [SignalOnLastRank()]),
        start(2, folder / "run", words),
        pretrain(read_request(["gpt_tiny", *words]).config, out=folder / "command"),
    ]
    return [(outcome.reason, outcome.step) for outcome in ended if outcome.saved]


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout",
    ["one process", "PP2", *(pytest.param(name, marks=pytest.mark.matrix) for name in ("DP2", "TP2"))],
)
def test_a_stopped_and_resumed_run_has_the_losses_of_an_undisturbed_run_and_of_the_command(
    overrides, tmp_path, layout
):
    ranks, words = LAYOUTS[layout]
    answers = run_ranks(all_ways, ranks, tmp_path, [*overrides, *words], timeout_seconds=300)
    assert answers == [answers[0]] * ranks
    finished = ("finished", 20)
    straight, (reason, step), resumed, command = answers[0]
    assert (straight, resumed, command) == (finished, finished, finished)
    assert (reason, STOPPED <= step < 20) == ("signal", True)
    straight = losses(tmp_path / "straight")
    assert straight[20] < straight[1]
    assert losses(tmp_path / "run") == straight
    # on a CPU the command has layers of mb-host in place of Megatron's local ones, which round differently
    assert losses(tmp_path / "command") == pytest.approx(straight, rel=1e-6)


@pytest.mark.matrix
def test_it_is_a_script_under_torchrun(overrides, tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    words = [*overrides, "model.tensor_model_parallel_size=2", "train.train_iters=4"]
    command = [*torchrun, SCRIPT, tmp_path, *words]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "finished all 4 steps" in ended.stdout
    assert len(losses(tmp_path)) == 4
