"""Tests that need two gloo ranks, which are spawned once."""

import gc
import json
import math
import os
import signal
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402

import mb_loop  # noqa: E402
from mb_loop import bridge_api  # noqa: E402
from mb_loop.collectives import any_rank  # noqa: E402
from mb_loop.loop_state import LoopConfig, TrainSection  # noqa: E402
from mb_loop.maintenance.replicas import weight_digest  # noqa: E402


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
    (folder / f"{rank}.json").write_text(json.dumps(answers_of_rank(rank)))
    gc.collect()  # a DDP module that outlives the group destroys it with the GIL held, which gloo's thread may wait for
    dist.destroy_process_group()


def answers_of_rank(rank):
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
    answers["evaluate"] = bridge_api.evaluate(report(value), None, [model], state, pg_collection=groups)

    # a metric is known on the last pipeline stage only, which is rank 1 here
    for mode in ("min", "max"):
        stopping = mb_loop.EarlyStopping("loss", patience=2, mode=mode)
        for loss in (3.0, -2.0, float("nan"), 4.0):
            context = mb_loop.CallbackContext(
                state=None, model=[], total_loss_dict={"loss": loss} if rank == 1 else {}
            )
            stopping.on_eval_end(context)
        answers[f"early stopping, {mode}"] = [stopping.best, stopping.without_improvement]

    accumulate = mb_loop.LoopState.of(train_iters=2, global_batch_size=6, data_parallel_size=2)
    bridge_api.train(
        lambda iterator, model: (model(torch.full((1,), value)).sum(), lambda loss: (loss, {"loss": loss.detach()})),
        [model], optimizer, None, None, None, accumulate, pg_collection=groups,
    )  # fmt: skip
    answers["weight"] = [parameter.grad.item() for parameter in model.parameters()]

    timed = mb_loop.LoopState.of(train_iters=9, data_parallel_size=2, exit_duration_in_mins=1)
    clock = iter(range(0, 10_000, [30, 1][rank])).__next__  # only the clock of rank 0 reaches the limit
    outcome = bridge_api.train(
        report(value), [model], optimizer, None, None, None, timed, pg_collection=groups, clock=clock
    )
    answers["duration"] = [outcome.reason, outcome.step]
    answers["signal"] = stop_by_signal(rank, model, optimizer, groups)
    answers["any"] = [any_rank(rank == 1), any_rank(False)]
    answers["replicas"] = replicas(rank)
    answers["submodels"] = submodels(rank)
    answers["logits"] = logits(rank)
    return answers


def stop_by_signal(rank, model, optimizer, groups):
    """Send SIGTERM to the second rank in its second step; return where each rank stopped."""

    def send(context):
        if (rank, context.state.train_state.step) == (1, 2):
            os.kill(os.getpid(), signal.SIGTERM)

    manager = mb_loop.CallbackManager()
    manager.register("on_train_step_end", send)
    state = mb_loop.LoopState.of(train_iters=9, data_parallel_size=2, exit_signal_handler=True)
    outcome = bridge_api.train(
        report(1.0), [model], optimizer, None, None, None, state, pg_collection=groups, callbacks=manager
    )
    return [outcome.reason, outcome.step, outcome.message]


def replicas(rank):
    """Train with a check after each second step; a bit flips on rank 1 in the third."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(300, 20))
    manager = mb_loop.CallbackManager()

    def flip(context):
        if context.result.step == 3 and rank == 1:
            bits = model.module.weight.data.view(torch.int32)
            bits[7, 123] ^= 1

    manager.register("on_train_step_end", flip)
    section = TrainSection(
        train_iters=9, global_batch_size=2, check_weight_hash_across_dp_replicas_interval=2
    )
    state = mb_loop.LoopState(cfg=LoopConfig(train=section, data_parallel_size=2))
    try:
        bridge_api.train(
            lambda iterator, model: (model(torch.ones(300)).sum(), lambda loss: (loss, {"loss": loss.detach()})),
            [model], torch.optim.SGD(model.parameters(), lr=1e-6), None, None, None, state,
            pg_collection=SimpleNamespace(dp_cp=dist.group.WORLD), callbacks=manager,
        )  # fmt: skip
    except mb_loop.ReplicaMismatchError as error:
        return [state.train_state.step, str(error)]
    return None


class Optimizer:
    """Optimizer with predefined results; `weights` are its parameters."""

    def __init__(self, weights, answer):
        self.param_groups, self.answer = [{"params": weights, "lr": 0.5}], answer

    def zero_grad(self):
        pass

    def step(self):
        return self.answer


def submodels(rank):
    """Return the results of ranks whose optimizers disagree; rank 1 trains nothing, or the same as rank 0."""
    answers = {}
    answer = [(False, 3.0, 7), (True, None, None)][rank]
    for name, trains, settings in (
        ("frozen", rank == 0, {}),
        (
            "left alone",
            rank == 0,
            {"check_optimizer_step_success": False, "skip_sync_grad_norm_across_mp": True},
        ),
        ("trusted", True, {}),
        ("not a number", rank == 0, {}),
    ):
        if name == "not a number":
            answer = (True, math.nan if rank == 1 else 3.0, None)
        state = mb_loop.LoopState(cfg=LoopConfig(train=TrainSection(train_iters=1, **settings)))
        optimizer = Optimizer([torch.ones(1)] if trains else [], answer)
        groups = SimpleNamespace(dp_cp=dist.group.WORLD, mp=dist.group.WORLD)
        result = mb_loop.train_step(
            report(1.0), None, [torch.nn.Linear(1, 1)], optimizer, None, state, pg_collection=groups
        )
        answers[name] = [result[1], *result[5:]]
    return answers


class Attention(torch.nn.Module):
    """Attention layer with predefined logits; records the logits at each call of clip_qk."""

    def __init__(self, measured):
        super().__init__()
        self.core_attention, self.clipped = torch.nn.Linear(1, 1), None
        self.core_attention.current_max_attn_logits = torch.tensor(measured)

    def clip_qk(self):
        self.clipped = self.core_attention.current_max_attn_logits.tolist()


def logits(rank):
    """Return the largest logit of two replicas, of two stages (the first without attention), and of no group."""
    world, alone = dist.group.WORLD, SimpleNamespace(size=lambda: 1)
    layers = [Attention([[1.0, 5.0], [3.0, 2.0]][rank]), Attention([[4.0], [0.5]][rank])]
    replicas = mb_loop.AttentionLogits(layers, groups=SimpleNamespace(dp_cp=world, mp=alone), clip=True)
    stages = mb_loop.AttentionLogits(
        [[torch.nn.Linear(1, 1)], [Attention([7.0])]][rank], groups=SimpleNamespace(dp_cp=alone, mp=world)
    )
    answers = [
        replicas(successful=True).item(),
        [layer.clipped for layer in layers],
        stages(successful=True).item(),
        [
            mb_loop.AttentionLogits(
                [Attention([math.nan if rank == other else 9.0])],
                groups=SimpleNamespace(dp_cp=world, mp=alone),
            )(successful=True).item()
            for other in range(2)
        ],
    ]
    with pytest.raises(mb_loop.TrainSettingsError):
        mb_loop.AttentionLogits([torch.nn.Linear(1, 1)], groups=SimpleNamespace(dp_cp=alone, mp=world))
    return answers


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    mp.start_processes(rank_main, args=(folder,), nprocs=2, start_method="fork")
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


def test_a_signal_to_one_rank_stops_all_ranks_after_the_same_step(answers):
    expected = ["signal", 2, "stopped after step 2: SIGTERM on rank 1"]
    assert answers[0]["signal"] == answers[1]["signal"] == expected


def test_a_corrupted_replica_is_found_at_the_next_check_on_all_ranks(answers):
    for rank in range(2):
        step, message = answers[rank]["replicas"]
        assert step == 4
        assert message.startswith(
            "weights after step 4: replicas hold different bits (module.weight (1 in all))"
        )


def test_if_a_rank_trains_nothing_the_optimizer_results_are_synchronised(answers):
    for rank in range(2):
        assert answers[rank]["submodels"]["frozen"] == [1, 3.0, 7.0]
    assert [answers[rank]["submodels"]["left alone"] for rank in range(2)] == [[1, 3.0, 7], [0, None, None]]
    assert [answers[rank]["submodels"]["trusted"] for rank in range(2)] == [[1, 3.0, 7], [0, None, None]]
    assert all(math.isnan(answers[rank]["submodels"]["not a number"][1]) for rank in range(2))


def test_attention_logits_are_reduced_over_replicas_before_clipping_and_over_stages(answers):
    for rank in range(2):
        *largest, of_nan = answers[rank]["logits"]
        assert largest == [5.0, [[3.0, 5.0], [4.0]], 7.0]
        assert all(map(math.isnan, of_nan))


def test_ranks_agree_on_a_metric_that_one_of_them_knows(answers):
    for rank in range(2):
        assert answers[rank]["early stopping, min"] == [-2.0, 2]
        assert answers[rank]["early stopping, max"] == [4.0, 0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.uint8])
def test_a_digest_depends_on_every_bit_and_the_order(dtype):
    weight = torch.arange(100).to(dtype)
    digest = weight_digest(weight)
    assert digest == weight_digest(weight.clone())
    assert digest != weight_digest(weight.flip(0))
    bits = weight.view(torch.uint8)
    for place in range(len(bits)):
        bits[place] ^= 1
        assert digest != weight_digest(weight)
        bits[place] ^= 1
