"""Megatron's rerun state machine in the loop, on two gloo ranks, one of which has faults."""

from dataclasses import dataclass
from itertools import count
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("megatron.core")
mb_host = pytest.importorskip("mb_host")

import mb_loop  # noqa: E402
from mb_loop import bridge_api  # noqa: E402
from mb_loop.step.loss_checks import DeferredLossCheck  # noqa: E402


@dataclass
class Section:
    rerun_mode: str = "validate_results"
    spiky_loss_factor: float = 10.0
    error_injection_rate: int = 0
    error_injection_type: str = "transient_error"
    check_for_nan_in_loss: bool = True
    check_loss_immediately: bool = False
    check_for_spiky_loss: bool = False


class Saves(mb_loop.Checkpointer):
    """Checkpointer that stores the state of the machine."""

    def __init__(self, rerun_machine):
        self.rerun_machine, self.steps, self.state = rerun_machine, [], None

    def save(self, step, *, non_persistent):
        self.steps.append(step)
        self.state = self.rerun_machine.state_dict()
        return [mb_loop.SaveResult(step=step, non_persistent=non_persistent, written=True)]

    def poll(self, *, blocking):
        return []


def train(
    *, steps=6, bad_batch=None, bad_times=0, value=float("nan"), waiting=None, step=0, skip=(), **section
):
    """Train on the batches 0, 1, 2, ...; the loss of one batch is invalid the first `bad_times` times."""
    from megatron.core.transformer.moe import moe_logging

    from mb_loop.mcore import MegatronRerunMachine

    torch.manual_seed(3)
    model = torch.nn.Linear(4, 4)
    model.register_buffer("updates", torch.zeros(()))
    model.buffers = []  # as the gradient buffers of Megatron's DistributedDataParallel
    moe_logging.destroy_moe_metrics_tracker()
    tracker = moe_logging.get_moe_metrics_tracker()
    seen = []

    def forward_step(iterator, model):
        number = next(iterator)
        seen.append(number)
        model.updates += 1
        tracker.record("load_balancing_loss", torch.ones(()), layer_number=1, num_layers=1)

        def loss_function(output):
            loss = torch.nn.functional.dropout(output, 0.5).square().mean()
            bad = (
                torch.distributed.get_rank() == 1 and number == bad_batch and seen.count(number) <= bad_times
            )
            rerun_machine.inspect_loss(loss.detach() * value if bad else loss.detach())
            return loss, {"loss": loss.detach()}

        return model(torch.full((2, 4), 1.0 + number % 3 + 0.1 * float(model.updates % 2))), loss_function

    rerun_machine = MegatronRerunMachine(Section(**section))
    if waiting is not None:
        rerun_machine.load_state_dict(waiting)
    saves = Saves(rerun_machine)
    state = mb_loop.LoopState.of(
        train_iters=steps, global_batch_size=2, save_interval=1, eval_iters=1, eval_interval=2,
        iterations_to_skip=skip,
    )  # fmt: skip
    state.train_state.step = step
    groups = SimpleNamespace(dp_cp=torch.distributed.group.WORLD)
    outcome = bridge_api.train(
        forward_step, [model], torch.optim.SGD(model.parameters(), lr=0.01), None,
        count(2 * step), iter(range(1000, 2000)), state, checkpointer=saves, rerun_machine=rerun_machine,
        pg_collection=groups,
    )  # fmt: skip
    return SimpleNamespace(
        ending=(outcome.reason, outcome.exit_code, outcome.step),
        batches=[number for number in seen if number < 1000],
        saved=saves.steps,
        counted=rerun_machine._machine.current_iteration,
        state=saves.state and {**saves.state, "sharded": saves.state["sharded"].data},
        weight=model.weight.tolist(),
        counts=(float(model.updates), tracker.metrics["load_balancing_loss"].values.tolist()),
    )


def drawn_again_from_generators():
    """Save and restore the states of a tracker with generators, as for CUDA graphs: same objects, same numbers."""
    from mb_loop import mcore

    generator, own = torch.Generator().manual_seed(5), mcore.get_cuda_rng_tracker
    mcore.get_cuda_rng_tracker = lambda: SimpleNamespace(get_states=lambda: {"name": generator})
    try:
        kept = mcore._save_random_state()
        first = torch.rand(3, generator=generator).tolist()
        mcore._restore_random_state(kept)
    finally:
        mcore.get_cuda_rng_tracker = own
    return first == torch.rand(3, generator=generator).tolist()


@pytest.fixture(scope="module")
def rank(pool):
    """Train on both ranks, check that they end identically, and return the run of the rank with faults."""

    def run(**keywords):
        healthy, faulty = pool.run(with_keywords, keywords)
        assert (healthy.ending, healthy.saved, healthy.batches) == (
            faulty.ending,
            faulty.saved,
            faulty.batches,
        )
        return faulty

    return run


def test_generators_of_a_tracker_for_graphs_are_restored(pool):
    assert pool.run(drawn_again_from_generators) == [True, True]


def with_keywords(keywords):
    return train(**keywords)


def test_without_a_fault_nothing_changes(rank):
    reference = rank(rerun_mode="disabled")
    assert reference.ending == ("finished", 0, 6)
    for mode in ("validate_results", "report_determinism_stats"):
        run = rank(rerun_mode=mode)
        assert (run.ending, run.weight) == (reference.ending, reference.weight)
        assert run.counts == reference.counts


@pytest.mark.parametrize("mode", ["disabled", "validate_results", "report_determinism_stats"])
def test_the_data_of_skipped_steps_is_consumed_once(rank, mode):
    run = rank(rerun_mode=mode, skip=(1, 3, 4))
    assert (run.ending, run.counted) == (("finished", 0, 6), 5)  # the machine counts from 0
    assert sorted(set(run.batches)) == [2, 3, 8, 9, 10, 11]


def test_a_fault_after_a_skipped_step_is_repeated_on_its_data(rank):
    run = rank(bad_batch=7, bad_times=1, skip=(3,))
    assert (run.ending, run.saved) == (("rerun", 17, 3), [1, 2, 3])
    assert run.batches == [0, 1, 2, 3, 6, 7, 6, 7]


def test_a_transient_fault_ends_with_17_and_without_a_checkpoint(rank):
    run = rank(bad_batch=7, bad_times=1)
    assert (run.ending, run.saved) == (("rerun", 17, 3), [1, 2, 3])
    assert run.batches == [0, 1, 2, 3, 4, 5, 6, 7, 6, 7]


def test_a_persistent_fault_ends_with_16_and_a_checkpoint_and_is_distinguished_on_another_device(rank):
    run = rank(bad_batch=7, bad_times=9)
    assert (run.ending, run.saved) == (
        ("rerun", 16, 3),
        [1, 2, 3, 3],
    )  # the second one has the machine's state

    here = rank(bad_batch=7, bad_times=9, waiting=run.state, step=3)
    assert (here.ending, here.saved, here.batches) == (("rerun", 16, 3), [], [6, 7])

    left_out = rank(bad_batch=7, bad_times=9, waiting=run.state, step=3, skip=(4,))
    assert (left_out.ending, left_out.batches) == (("finished", 0, 6), [8, 9, 10, 11])

    run.state["sharded"]["suspicious_node"] = "another node"
    elsewhere = rank(bad_batch=7, bad_times=9, waiting=run.state, step=3)
    assert (elsewhere.ending, elsewhere.saved) == (("rerun", 17, 3), [])


@pytest.mark.parametrize(("kind", "code"), [("transient_error", 17), ("persistent_error", 16)])
def test_injected_faults(rank, kind, code):
    run = rank(error_injection_rate=1, error_injection_type=kind)
    assert run.ending == ("rerun", code, 1)  # the first step of a process is not checked
    assert run.saved == ([1, 1] if code == 16 else [1])


@pytest.mark.parametrize(("mode", "times"), [("validate_results", 2), ("disabled", 1)])
def test_a_spiky_loss_is_reported_and_accepted(rank, mode, times):
    run = rank(steps=60, bad_batch=110, bad_times=1, value=1e6, check_for_spiky_loss=True, rerun_mode=mode)
    assert (run.ending, run.batches.count(110)) == (("finished", 0, 60), times)


def test_nothing_is_checked_by_default(rank):
    run = rank(bad_batch=7, bad_times=1, rerun_mode="disabled", check_for_nan_in_loss=False)
    assert run.ending == ("finished", 0, 6)


def test_a_loss_that_is_not_a_number_raises_in_mode_disabled(rank):
    with pytest.raises(mb_host.RankFailedError, match="NonFiniteLossError: loss: is nan"):
        rank(bad_batch=7, bad_times=1, rerun_mode="disabled")


@pytest.mark.parametrize(
    ("settings", "repeats", "inspects"),
    [
        (Section(), True, True),
        (Section(rerun_mode="disabled"), False, True),
        (Section(rerun_mode="disabled", check_for_spiky_loss=True), True, True),
        (Section(rerun_mode="disabled", check_for_nan_in_loss=False), False, False),
    ],
)
def test_a_machine_is_built_if_a_setting_needs_it(settings, repeats, inspects):
    from mb_loop.mcore import build_rerun_machine, loss_inspection

    machine = build_rerun_machine(settings)
    inspection = loss_inspection(settings, machine)
    assert (machine is not None, inspection.inspect is not None) == (repeats, inspects)


def test_a_loss_is_read_one_step_later_unless_requested_at_once():
    from mb_loop.mcore import loss_inspection

    at_once = loss_inspection(Section(rerun_mode="disabled", check_loss_immediately=True), None)
    assert (at_once.inspect, at_once.callbacks) == (mb_loop.require_finite_loss, ())
    deferred = loss_inspection(Section(rerun_mode="disabled"), None)
    assert [type(each) for each in deferred.callbacks] == [DeferredLossCheck]
