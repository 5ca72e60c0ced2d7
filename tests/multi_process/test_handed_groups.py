"""Process groups that are handed over: a run on two ranks is the same without Megatron's own state of groups."""

import pytest
import torch
from megatron.core import parallel_state
from runs import metrics

import mb_host
from mb_loop import Callback
from mb_trainer import pretrain
from mb_trainer.reading import read_request


class SeesNoState(Callback):
    """Says after each step whether Megatron has groups of its own."""

    def __init__(self):
        self.own = []

    def on_train_step_end(self, context):
        self.own.append(parallel_state.model_parallel_is_initialized())


def run_both(words, out):
    """Train both ways; return whether there was a state of Megatron's, and what was measured."""
    rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    place = {"RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_RANK": str(rank)}
    found = []
    for handed in (False, True):
        sees = SeesNoState()
        asked = [
            *words,
            "dist.use_gloo_process_groups=false",
            f"dist.use_decentralized_pg={str(handed).lower()}",
        ]
        request = read_request(asked)
        pretrain(
            request.config,
            out=out / str(handed),
            provenance=request.provenance,
            callbacks=[sees],
            environment=place,
        )
        rows = metrics(out / str(handed))
        found.append((sees.own, [(row.get("lm loss"), row.get("grad-norm")) for row in rows]))
    return found


@pytest.fixture(scope="module")
def two_ranks():
    with mb_host.RankPool(2) as pool:
        yield pool


def in_a_rank(arguments):
    return run_both(*arguments)


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout",
    [
        ["model.tensor_model_parallel_size=2", "model.sequence_parallel=true"],
        ["model.pipeline_model_parallel_size=2", "model.num_layers=2"],
        pytest.param(
            ["ddp.use_distributed_optimizer=true", "ddp.overlap_grad_reduce=true"],
            marks=pytest.mark.matrix,
        ),
        pytest.param(["model.context_parallel_size=2"], marks=pytest.mark.matrix),
    ],
)
def test_a_run_with_groups_that_are_handed_over_is_the_same(two_ranks, overrides, tmp_path, layout):
    words = [*overrides, *layout, "train.train_iters=3", "train.micro_batch_size=2"]
    for (own_state, own), (no_state, handed) in two_ranks.run(in_a_rank, (words, tmp_path)):
        assert (own_state, no_state) == ([True] * 3, [False] * 3)
        assert handed == own
        assert len(own) >= 3
