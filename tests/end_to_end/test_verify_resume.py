"""A resume that is exact, and three that are not: each planted fault is found and named."""

import shutil

import pytest
import torch
from runs import train_here

from mb_loop import Callback
from mb_verify import ALL_RANKS, Recorder, compare, read_record

SHAPE = ["train.train_iters=9", "train.micro_batch_size=4", "validation.eval_interval=3"]
SHAPE += ["model.hidden_dropout=0.1", "checkpoint.save_interval=null", "checkpoint.verify_integrity=false"]


class ShuffledRandomness(Callback):
    """Loses a random stream."""

    def on_train_start(self, context):
        torch.manual_seed(99)


class LostSample(Callback):
    """Reads the sample after instead of the first one, in the first step."""

    def on_train_start(self, context):
        self._hook = context.model[0].register_forward_pre_hook(self._skip_one)

    def _skip_one(self, module, inputs):
        self._hook.remove()
        return torch.cat([inputs[0][1:], inputs[0][:1]]), *inputs[1:]


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
