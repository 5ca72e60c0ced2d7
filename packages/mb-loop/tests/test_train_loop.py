"""Order of operations within an iteration, with fakes that record their calls."""

from dataclasses import dataclass, field
from types import SimpleNamespace

from mb_loop import BatchPlan, CallbackManager, StepResult, TrainState
from mb_loop.callbacks import EventDispatcher
from mb_loop.exits.exit_conditions import ExitConditions
from mb_loop.exits.outcome import LoopExit
from mb_loop.train_loop import PeriodicTask, TrainLoop, run_train_loop


@dataclass
class Log:
    lines: list[str] = field(default_factory=list)

    def poll(self):
        self.lines.append("poll")

    def save(self, step, *, again=False):
        self.lines.append(f"save {step}" + (" again" if again else ""))

    def before_step(self):
        self.lines.append("graphs")

    def after_step(self, step=None, *, leaving=None, skipped=None):
        if step is None:
            self.lines.append("hooks")
        else:
            self.lines.append(f"saves after {step}" + (", leaving" if leaving else ""))

    def __call__(self, step):
        self.lines.append(f"after {step}")


def make_loop(
    log, *, train_iters=2, results=None, plan=None, skip=(), interval=None, stop_requested=lambda step: None
):
    state = TrainState()
    manager = CallbackManager()
    for event in ("on_train_step_start", "on_train_step_end"):
        manager.register(event, lambda context, event=event: log.lines.append(f"{event} at {state.step}"))

    def step(number, batch):
        log.lines.append(f"step {number} of {batch.samples}")
        return StepResult(step=number, losses={}, samples=batch.samples, **(results or {}).get(number, {}))

    return TrainLoop(
        train_iters=train_iters,
        skip_steps=frozenset(skip),
        state=state,
        plan=plan or BatchPlan.of(4, micro_batch_size=1, data_parallel_size=2),
        step=step,
        discard=lambda batch: log.lines.append(f"discard {batch.samples}"),
        events=EventDispatcher(manager=manager, state=SimpleNamespace(train_state=state), model=[]),
        hooks=log,
        graphs=log,
        flops=lambda result: 2.5 * result.samples,
        evaluate=lambda step: log.lines.append(f"evaluate after {step}"),
        maintenance=[
            PeriodicTask(interval=1, run=lambda step: log.lines.append(f"maintenance after {step}"))
        ],
        saves=log,
        exits=ExitConditions(interval=interval, stop_requested=stop_requested),
    )


def test_one_iteration_in_order():
    log = Log()
    loop = make_loop(log, train_iters=1)
    assert run_train_loop(loop) == LoopExit(reason="finished", message="finished all 1 steps")
    assert log.lines == [
        "poll",
        "graphs",
        "on_train_step_start at 0",
        "step 1 of 4",
        "hooks",
        "on_train_step_end at 1",
        "evaluate after 1",
        "maintenance after 1",
        "saves after 1",
    ]


def test_a_skipped_iteration_consumes_data_and_still_decides_on_saves_and_exits():
    log = Log()
    loop = make_loop(
        log, train_iters=5, skip=[1, 2], stop_requested=lambda step: "enough" if step == 2 else None
    )
    assert run_train_loop(loop) == LoopExit(reason="signal", message="stopped after step 2: enough")
    assert log.lines == ["poll", "discard 4", "saves after 1", "poll", "discard 4", "saves after 2, leaving"]
    assert loop.state == TrainState(step=2, consumed_train_samples=8, skipped_train_samples=8)


def test_the_last_step_before_a_larger_batch_is_saved():
    log = Log()
    plan = BatchPlan.of(4, micro_batch_size=1, data_parallel_size=1, rampup_batch_size=[2, 2, 4])
    run_train_loop(make_loop(log, train_iters=4, plan=plan))
    assert [line for line in log.lines if line.startswith(("step", "save "))] == [
        "step 1 of 2",
        "step 2 of 2",
        "save 2",
        "step 3 of 4",
        "step 4 of 4",
    ]


def test_a_rejected_result_leaves_without_counting_the_step():
    log = Log()
    loop = make_loop(log, results={2: {"should_checkpoint": True, "exit_code": 16}})
    leave = run_train_loop(loop)
    assert (leave.reason, leave.exit_code, loop.state.step) == ("rerun", 16, 1)
    assert log.lines[-2:] == ["step 2 of 4", "save 1 again"]


def test_stop_requested_is_called_once_after_every_step():
    steps = []
    run_train_loop(make_loop(Log(), train_iters=4, skip=[2], stop_requested=steps.append))
    assert steps == [1, 2, 3, 4]


def test_the_last_step_finishes_whatever_exit_condition_holds():
    log = Log()
    leave = run_train_loop(
        make_loop(log, train_iters=3, interval=3, stop_requested=lambda step: "now" if step == 3 else None)
    )
    assert leave.reason == "finished"
    assert log.lines[-1] == "saves after 3, leaving"
