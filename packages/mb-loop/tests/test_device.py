"""Device synchronisation, and release of unused device memory."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

import tiny  # noqa: E402

import mb_loop  # noqa: E402
from mb_loop import bridge_api  # noqa: E402
from mb_loop.callbacks import CallbackManager, EventDispatcher  # noqa: E402
from mb_loop.evaluation.evaluate import run_evaluation  # noqa: E402
from mb_loop.exits.exit_conditions import never_stop  # noqa: E402
from mb_loop.loop_state import LoopConfig, TrainSection, ValidationSection  # noqa: E402
from mb_loop.maintenance.manual_gc import ManualGC  # noqa: E402
from mb_loop.maintenance.periodic import maintenance_tasks, wait_for_device  # noqa: E402
from mb_loop.settings import batch_plan  # noqa: E402
from mb_loop.step.forward_backward import ForwardBackwardRunner  # noqa: E402
from mb_loop.step.hooks import ForwardPreHooks  # noqa: E402


@pytest.fixture
def waits(monkeypatch):
    """Return a function that fakes a GPU, or none, and records synchronisations."""
    log = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: log.append("wait"))
    return lambda gpu: monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu) or log


def runner_of(model):
    return ForwardBackwardRunner(
        tiny.forward_step,
        data_iterator=tiny.batches(),
        model=[model],
        seq_length=None,
    )


@pytest.mark.parametrize(
    ("level", "order"),
    [
        (0, ["optimizer"]),
        (1, ["release", "optimizer"]),
        (2, ["release", "optimizer", "release"]),
    ],
)
def test_a_step_releases_memory_according_to_the_level(level, order):
    log = []
    model, optimizer = tiny.make_model()
    optimizer.register_step_pre_hook(lambda *_: log.append("optimizer"))
    train = TrainSection(train_iters=1, empty_unused_memory_level=level, global_batch_size=2)
    state = mb_loop.LoopState(cfg=LoopConfig(train=train))
    parts = mb_loop.TrainParts(
        forward_step_func=tiny.forward_step,
        model=model,
        optimizer=optimizer,
        train_data_iterator=tiny.batches(),
    )
    step = mb_loop.TrainStep(parts, state, empty_cache=lambda: log.append("release"))
    step(1, batch_plan(state.cfg).at(0))
    assert log == order


@pytest.mark.parametrize(("level", "releases"), [(0, 0), (1, 3), (2, 3)])
def test_an_evaluation_releases_memory_after_each_batch(level, releases):
    log = []
    model, _ = tiny.make_model()
    train = TrainSection(train_iters=1, empty_unused_memory_level=level)
    state = mb_loop.LoopState(cfg=LoopConfig(train=train, validation=ValidationSection(eval_iters=3)))
    run_evaluation(
        runner_of(model),
        EventDispatcher(manager=CallbackManager(), state=state, model=[model]),
        groups=None,
        hooks=ForwardPreHooks([model], used=False),
        kind="eval",
        stop_evaluation=never_stop,
        non_loss=None,
        empty_cache=lambda: log.append("release"),
    )
    assert len(log) == releases


def test_maintenance_has_a_task_for_each_interval():
    log = []
    train = TrainSection(
        train_sync_interval=2,
        manual_gc=True,
        manual_gc_interval=3,
        check_weight_hash_across_dp_replicas_interval=5,
    )
    tasks = maintenance_tasks(
        train,
        replicas=lambda step: log.append(f"replicas {step}"),
        manual_gc=ManualGC(train, collect=lambda generation: log.append(f"generation {generation}")),
        synchronize=lambda: log.append("synchronize"),
    )
    assert [task.interval for task in tasks] == [2, 5, 3]
    for task in tasks:
        task.run(30)
    assert log == ["synchronize", "replicas 30", "generation 2"]
    assert maintenance_tasks(TrainSection(), replicas=None, manual_gc=ManualGC(TrainSection())) == []


def test_synchronisation_requires_a_gpu(waits):
    log = waits(gpu=False)
    wait_for_device()
    assert log == []
    waits(gpu=True)
    wait_for_device()
    assert log == ["wait"]


def test_a_custom_loop_synchronises_only_with_a_gpu(waits):
    config = SimpleNamespace(train=TrainSection(train_sync_interval=1), straggler=None, profiling=None)
    log = waits(gpu=False)
    mb_loop.post_training_step_callbacks([], 2.0, None, 1, None, config, False)
    assert log == []
    waits(gpu=True)
    mb_loop.post_training_step_callbacks([], 2.0, None, 2, None, config, False)
    assert log == ["wait"]


@pytest.mark.parametrize(("gpu", "waited"), [(False, []), (True, ["wait", "wait"])])
def test_a_run_synchronises_at_its_interval(waits, gpu, waited):
    log, (model, _) = waits(gpu), tiny.make_model()
    optimizer = SimpleNamespace(zero_grad=model.zero_grad, step=lambda: (True, 1.0, 0), param_groups=[])
    state = mb_loop.LoopState(cfg=LoopConfig(train=TrainSection(train_iters=4, train_sync_interval=2)))
    bridge_api.train(tiny.forward_step, [model], optimizer, None, tiny.batches(), None, state)
    assert log == waited
