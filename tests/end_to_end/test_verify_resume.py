"""A resume that is exact, and three that are not: each planted fault is found and named."""

import shutil

import pytest
import torch
from runs import train_here

from mb_loop import Callback
from mb_verify import Recorder, compare, read_record
from mb_verify.record.run_record import ALL_RANKS

SHAPE = ["train.train_iters=9", "train.micro_batch_size=4", "validation.eval_interval=3"]
SHAPE += ["model.hidden_dropout=0.1", "checkpoint.save_interval=null", "checkpoint.verify_integrity=false"]


class ShuffledRandomness(Callback):
    """Loses a random stream."""

    def on_train_start(self, context):
        torch.manual_seed(99)


class LostSample(Callback):
    """Reads the sample after instead of the first one, in the first step."""

    def __init__(self):
        self._lost = False

    def on_train_microbatch(self, context):
        if not self._lost:
            tokens = context.microbatch["tokens"]
            tokens.copy_(torch.cat([tokens[1:], tokens[:1]]))
            self._lost = True


class StaleMoment(Callback):
    """Has the first moment of one weight as it was some steps ago."""

    def on_train_start(self, context):
        adam = context.optimizer.chained_optimizers[0].optimizer
        moments = adam.state[adam.param_groups[0]["params"][3]]
        moments["exp_avg"].mul_(0.9)


@pytest.fixture(scope="module")
def recorded(overrides, tmp_path_factory):
    """Run uninterrupted, and up to the interruption; return what resumes from there with a callback."""
    folder = tmp_path_factory.mktemp("proof")
    words = [*overrides, *SHAPE]

    def run(name, *callbacks, start=0, also=()):
        recorder = Recorder(folder / f"record-{name}", rank=0, start=start)
        return train_here([*words, *also], folder / name, callbacks=(*callbacks, recorder))

    run("uninterrupted")
    run("interrupted", also=["train.exit_interval=5"])

    def resume(name, *callbacks):
        for made in (name, f"record-{name}"):
            source = folder / made.replace(name, "interrupted")
            shutil.copytree(source, folder / made)
        run(name, *callbacks, start=1)
        return compare(read_record(folder / "record-uninterrupted"), read_record(folder / f"record-{name}"))

    return resume


@pytest.mark.slow
def test_a_resume_is_exact(recorded):
    verdict = recorded("exact")
    assert (verdict.first, verdict.last_step, verdict.resumed_at) == (None, 9, (5,))
    assert [line.category for line in verdict.lines] == [
        "samples",
        "counters",
        "random streams",
        "learning rate",
        "losses",
        "gradient norm",
        "optimizer",
        "parameters",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "place", "category", "name"),
    [
        (ShuffledRandomness(), (5, True), "random streams", "torch_rng_state"),
        (LostSample(), (6, False), "samples", "tokens of chunk 0, microbatch 0, sequence 0"),
        (StaleMoment(), (5, True), "optimizer", "exp_avg of decoder.layers.0.mlp.linear_fc1.weight"),
    ],
    ids=["shuffled randomness", "lost sample", "stale moment"],
)
def test_a_planted_fault_is_found_and_named(recorded, fault, place, category, name):
    first = recorded(type(fault).__name__, fault).first
    assert first is not None
    assert (first.position.step, first.position.after_step, first.category) == (*place, category)
    assert name in first.name
    assert first.position.rank != ALL_RANKS
    assert first.uninterrupted != first.interrupted


class NoHooks(Callback):
    """Removes the hooks of the model, as a replayed CUDA graph calls none."""

    def on_train_step_start(self, context):
        context.model[0]._forward_pre_hooks.clear()


@pytest.mark.slow
def test_what_a_step_reads_is_recorded_without_a_hook_of_the_model(overrides, tmp_path):
    recorder = Recorder(tmp_path / "record", rank=0, start=0)
    words = [*overrides, *SHAPE, "train.train_iters=3"]
    train_here(words, tmp_path / "run", callbacks=(recorder, NoHooks()))
    rows = [row.values for row in read_record(tmp_path / "record").rows if row.position.rank == 0]
    read = [values["samples: tokens of chunk 0"] for values in rows if "losses: lm loss" in values]
    assert len(set(read)) == len(read) == 3
