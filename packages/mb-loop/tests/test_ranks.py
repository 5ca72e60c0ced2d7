"""Two gloo ranks, spawned once, do everything that needs two."""

import json
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402

import mb_loop  # noqa: E402
from mb_loop.training import any_rank  # noqa: E402


def report(value):
    """Return a forward step that reports a fixed loss: a scalar and a [sum, count] pair."""

    def forward_step(iterator, model):
        pair = torch.tensor([value * 10, 10.0 * value])
        return model(torch.ones(1)).sum(), lambda output: (
            output,
            {"scalar": torch.tensor(value), "pair": pair},
        )

    return forward_step


def rank_main(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    groups = SimpleNamespace(dp_cp=dist.group.WORLD)
    value = [1.0, 3.0][rank]
    answers = {}

    state = mb_loop.LoopState.of(train_iters=1, data_parallel_size=2, eval_iters=2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses, *_ = mb_loop.train_step(
        report(value), None, [model], optimizer, None, state, pg_collection=groups
    )
    answers["train"] = {name: loss.item() for name, loss in losses.items()}
    answers["evaluate"] = mb_loop.evaluate(report(value), None, [model], state, pg_collection=groups)

    accumulate = mb_loop.LoopState.of(train_iters=2, global_batch_size=6, data_parallel_size=2)
    mb_loop.train(
        lambda iterator, model: (model(torch.full((1,), value)).sum(), lambda loss: (loss, {"loss": loss.detach()})),
        [model], optimizer, None, None, None, accumulate, pg_collection=groups,
    )  # fmt: skip
    answers["weight"] = [parameter.grad.item() for parameter in model.parameters()]

    timed = mb_loop.LoopState.of(train_iters=9, data_parallel_size=2, exit_duration_in_mins=1)
    clock = iter(range(0, 10_000, [30, 1][rank])).__next__  # only rank 0 ever gets there
    outcome = mb_loop.train(
        report(value), [model], optimizer, None, None, None, timed, pg_collection=groups, clock=clock
    )
    answers["duration"] = [outcome.reason, outcome.step]
    answers["any"] = [any_rank(rank == 1), any_rank(False)]
    (folder / f"{rank}.json").write_text(json.dumps(answers))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    mp.spawn(rank_main, args=(folder,), nprocs=2)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def test_scalar_losses_are_averaged_over_ranks_and_pairs_by_their_counts(answers):
    for rank in range(2):
        assert answers[rank]["train"] == {"scalar": 2.0, "pair": 1.0}
        assert answers[rank]["evaluate"] == {"scalar": 2.0, "pair": 1.0}


def test_gradients_accumulate_without_and_end_with_a_reduction(answers):
    assert answers[0]["weight"] == answers[1]["weight"] == [2.0, 1.0]


def test_ranks_agree_on_the_duration(answers):
    assert answers[0]["duration"] == answers[1]["duration"] == ["duration", 2]
    assert answers[0]["any"] == answers[1]["any"] == [True, False]
