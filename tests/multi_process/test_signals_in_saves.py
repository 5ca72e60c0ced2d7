"""A signal in each phase of a save, to either of two ranks: they stop after the same step, and nothing is lost.

All signals in all phases take some minutes: MB_ALL_FAULTS=1 pytest test_signals_in_saves.py. Else each phase has one.
"""

import json
import os
import signal
from itertools import cycle, product
from pathlib import Path

import pytest
import signal_points
from runs import events, run_ranks

from mb_checkpoint import select_checkpoint, verify_checkpoint
from mb_checkpoint.storage.checkpoints import list_stored
from mb_checkpoint.storage.storage import open_storage

PHASES = {
    "plan": r"os.mkdir .*/\.saving_iter_0000004",
    "write": r"open .*/\.saving_iter_0000004.*\.distcp",
    "manifest": r"open .*/\.saving_iter_0000004.*/manifest\.json",
    "commit": r"os.rename .*/\.saving_iter_0000004.* .*/iter_0000004$",
    "tracker": r"os.rename .*/checkpoints/\..* .*/latest_checkpointed_iteration\.txt$",
    "prune": r"os.rename .*/iter_0000002 .*/\.removing_",
    # of the first copy that is made: others are left out if a newer checkpoint follows
    "upload": r"os.rename .*/storage/iter_.*/manifest\.json",
}
"""File operations of the second save; each second step is saved, and only the newest checkpoint is kept."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
ALL = "MB_ALL_FAULTS" in os.environ
CHOSEN = product(PHASES, SIGNALS) if ALL else zip(PHASES, cycle(SIGNALS), strict=False)
TRIALS = [(*chosen, rank) for chosen, rank in zip(CHOSEN, cycle((0, 1, 1, 0)), strict=False)]


class RequiresSignal:
    """Callback that fails if the signal is never sent."""

    def __init__(self, mark):
        self.mark = mark

    def on_train_step_end(self, context):
        assert context.state.train_state.step < 2000 or self.mark.exists(), "the phase was not reached"


def stop_in_saves(words, folder, trials):
    """Train until a signal in each of the trials; return reason, message and step of this rank for each."""
    from torch import distributed

    from mb_trainer import pretrain
    from mb_trainer.requests import read_request

    signal_points.install()
    os.environ["PYTHONPATH"] = str(Path(__file__).parent / "fault")  # of a writer process that is spawned
    rank = distributed.get_rank()
    processes = [None, None]
    distributed.all_gather_object(processes, os.getpid())
    outcomes = []
    for number, (phase, sent, receiver) in enumerate(trials):
        out, mark = folder / f"{number}", folder / f"sent_{number}"
        plan = {"pattern": PHASES[phase], "receiver": processes[receiver], "number": sent, "mark": str(mark)}
        os.environ[signal_points.VARIABLE] = json.dumps(plan)
        more = [f"checkpoint.storage={out}/storage", f"train.exit_signal={signal.Signals(sent).name}"]
        # a spawned writer imports torch; it is the sender in one phase
        more += [f"checkpoint.async_write_results_mp_mode={'spawn' if phase == 'write' else 'fork'}"]
        request = read_request([*words, *more])
        outcome = pretrain(
            request.config,
            out=out,
            provenance=request.provenance,
            callbacks=[RequiresSignal(mark)],
            environment={"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)},
        )
        outcomes.append((outcome.reason, outcome.message, outcome.step))
    return outcomes


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["synchronous", "background"])
def test_a_signal_in_any_phase_of_a_save_stops_all_ranks_and_loses_nothing(overrides, tmp_path, mode):
    words = [
        *overrides,
        "train.train_iters=100000",
        "validation.eval_interval=null",
        "validation.eval_iters=0",
        "checkpoint.save_interval=2",
        "checkpoint.most_recent_k=1",
        f"checkpoint.async_save={mode == 'background'}",
        "logger.tensorboard_dir=null",
    ]
    first, second = run_ranks(stop_in_saves, 2, words, tmp_path, TRIALS, timeout_seconds=1800)
    assert first == second
    for number, ((phase, sent, receiver), (reason, message, step)) in enumerate(
        zip(TRIALS, first, strict=True)
    ):
        out = tmp_path / f"{number}"
        assert reason == "signal", phase
        assert message == f"stopped after step {step}: {signal.Signals(sent).name} on rank {receiver}"
        root = out / "checkpoints"
        assert select_checkpoint(root).step == step
        verified = verify_checkpoint(root)  # an older one stays while it is copied
        assert root / f"iter_{step:07d}" in verified
        assert [problem for problems in verified.values() for problem in problems] == []
        assert [path for path in root.iterdir() if path.name.startswith((".saving_", ".removing_"))] == []
        assert list_stored(open_storage(str(out / "storage")))[0].step == step
        assert events(out)[-1] == ("stop", step)
