"""Process groups passed explicitly: a run on two ranks is the same as with Megatron's global parallel_state."""

import pytest
import torch
from megatron.core import parallel_state
from runs import metrics, rank_pool

from mb_loop import Callback
from mb_trainer import pretrain
from mb_trainer.requests import read_request


class StateRecorder(Callback):
    """Records after each step whether Megatron's global parallel_state is initialized."""

    def __init__(self):
        self.initialized = []

    def on_train_step_end(self, context):
        self.initialized.append(parallel_state.model_parallel_is_initialized())


def run_both(words, out):
    """Train with global and with decentralized groups; return the state flags and metrics of each run."""
    rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    environment = {"RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_RANK": str(rank)}
    found = []
    for decentralized in (False, True):
        recorder = StateRecorder()
        words_of_run = [
            *words,
            "dist.use_gloo_process_groups=false",
            f"dist.use_decentralized_pg={str(decentralized).lower()}",
        ]
        request = read_request(words_of_run)
        pretrain(
            request.config,
            out=out / str(decentralized),
            provenance=request.provenance,
            callbacks=[recorder],
            environment=environment,
        )
        rows = metrics(out / str(decentralized))
        found.append((recorder.initialized, [(row.get("lm loss"), row.get("grad-norm")) for row in rows]))
    return found


@pytest.fixture(scope="module")
def two_ranks():
    with rank_pool(2) as pool:
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
def test_a_run_with_decentralized_groups_is_the_same(two_ranks, overrides, tmp_path, layout):
    words = [*overrides, *layout, "train.train_iters=3", "train.micro_batch_size=2"]
    for (global_state, expected), (no_state, found) in two_ranks.run(in_a_rank, (words, tmp_path)):
        assert (global_state, no_state) == ([True] * 3, [False] * 3)
        assert found == expected
        assert len(expected) >= 3
