"""The callback that records a training loop, in a loop that fires the events."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from mb_metrics import Metrics, Sink, TrainingMetrics

NOT_MEASURED = dict.fromkeys(
    ("learning_rate", "decoupled_learning_rate", "grad_norm", "num_zeros_in_grad", "max_attention_logit")
)


def step_result(step, **fields):
    common = {"step": step, "losses": {}, "samples": 8, "tokens": 80, "skipped": False}
    return SimpleNamespace(**{**NOT_MEASURED, **common, **fields})


def context(result=None, *, step=0, skipped=0, **fields):
    step = step if result is None else result.step
    counters = SimpleNamespace(step=step, consumed_train_samples=8 * step, skipped_train_samples=skipped)
    none = dict.fromkeys(("total_loss_dict", "save", "checkpoint_work"))
    given = {"optimizer": SimpleNamespace(get_loss_scale=lambda: 2.0), **none, **fields}
    return SimpleNamespace(state=SimpleNamespace(train_state=counters), result=result, **given)


class Files(Sink):
    """Sink that stores the names of files."""

    def __init__(self):
        self.names = []

    def write_file(self, path, name):
        self.names.append(name)


def recorded(recorder, result, *, skipped=0, **settings):
    with TrainingMetrics(Metrics([recorder], log_interval=1), **settings) as callback:
        callback.on_train_step_end(context(result, skipped=skipped))
    return {
        name: value
        for name, value in recorder.rows[-1].values.items()
        if not name.startswith(("throughput/", "iteration-time", "world-size", "batch-size"))
    }


def test_rates_skipped_samples_and_the_largest_logit_have_their_names(recorder):
    result = step_result(3, learning_rate=0.5, decoupled_learning_rate=0.1, max_attention_logit=7.0)
    common = {"learning-rate": 0.5, "max-attention-logit": 7.0, "loss-scale": 2.0}
    assert recorded(recorder, result) == common
    assert recorded(recorder, result, skipped=16, decoupled_rate=True) == {
        **common, "decoupled-learning-rate": 0.1, "skipped-train-samples": 16
    }  # fmt: skip


def test_an_optimizer_without_a_loss_scale_has_none(recorder):
    with TrainingMetrics(Metrics([recorder], log_interval=1)) as callback:
        callback.on_train_step_end(context(step_result(1, losses={"loss": 4.0}), optimizer=object()))
        callback.on_train_step_end(context(None, step=2))
    (row,) = recorder.rows
    assert row.values["loss"] == 4.0
    assert "loss-scale" not in row.values


def test_norms_and_interval_values_are_measured_at_the_end_of_an_interval_only(recorder):
    calls = []

    def interval(*, step, microbatches):
        calls.append((step, microbatches))
        return {"z_loss": 0.5}

    callback = TrainingMetrics(
        Metrics([recorder], log_interval=2),
        samples_per_microbatch=4,
        gradient_norms=lambda *, loss_scale: {"l2_norm/grad/global": loss_scale},
        parameter_norm=lambda: 3.0,
        interval_values=[interval],
        step_values=[lambda: {"speed": 1.0}],
    )
    with callback:
        for step in range(1, 5):
            callback.on_before_optimizer_step(context(step=step - 1))
            callback.on_train_step_end(context(step_result(step)))
    assert calls == [(2, 4), (4, 4)]
    norms = [row.values.get("l2_norm/grad/global") for row in recorder.rows]
    assert norms == [None, 2.0, None, 2.0]
    assert [row.values.get("params-norm") for row in recorder.rows] == [None, 3.0, None, 3.0]
    assert [row.values.get("z_loss") for row in recorder.rows] == [None, 0.5, None, 0.5]
    assert [row.values["speed"] for row in recorder.rows] == [1.0] * 4


class Meter:
    """Measurement that records its pauses."""

    def __init__(self):
        self.calls = []

    def pause(self):
        self.calls.append("pause")

    def resume(self):
        self.calls.append("resume")


def test_evaluations_and_saves_are_no_training_time(recorder, clock):
    meter = Meter()
    callback = TrainingMetrics(Metrics([recorder], log_interval=2, clock=clock), pausable=[meter])
    with callback:
        clock.now += 1
        callback.on_train_step_end(context(step_result(1)))
        callback.on_eval_start(context(step=1))
        clock.now += 100
        callback.on_eval_end(context(step=1, total_loss_dict={"lm loss": 2.0}))
        assert meter.calls == ["pause", "resume"]
        callback.on_checkpoint_start(context(step=1, checkpoint_work="save"))
        clock.now += 100
        callback.on_checkpoint_end(context(step=1, checkpoint_work="save"))
        callback.on_checkpoint_start(context(step=1, checkpoint_work="finalize"))
        callback.on_checkpoint_end(context(step=1, checkpoint_work="finalize"))
        clock.now += 1
        callback.on_train_step_end(context(step_result(2)))
    assert meter.calls == ["pause", "resume"] * 2
    assert recorder.rows[-1].values["iteration-time"] == pytest.approx(1.0)
    assert [evaluation.losses for evaluation in recorder.evaluations] == [{"lm loss": 2.0}]


def test_an_evaluation_without_losses_is_not_recorded(recorder):
    with TrainingMetrics(Metrics([recorder])) as callback:
        callback.on_eval_start(context(step=1))
        callback.on_eval_end(context(step=1))
    assert recorder.evaluations == []


def test_all_steps_are_written_before_a_save(recorder):
    with TrainingMetrics(Metrics([recorder], log_interval=10)) as callback:
        callback.on_train_step_end(context(step_result(1)))
        callback.on_checkpoint_start(context(step=1, checkpoint_work="finalize"))
        callback.on_checkpoint_end(context(step=1))
        assert recorder.steps == []
        callback.on_checkpoint_start(context(step=1, checkpoint_work="save"))
        assert recorder.steps == [1]
        callback.on_checkpoint_end(context(step=1))


def test_only_persistent_checkpoints_with_a_path_are_stored():
    files = Files()
    with TrainingMetrics(Metrics([files])) as callback:
        for path, non_persistent in (("a/iter_2", True), (None, False), ("a/iter_4", False)):
            save = SimpleNamespace(path=path and Path(path), non_persistent=non_persistent)
            callback.on_checkpoint_save(context(step=4, save=save))
    assert files.names == ["a/iter_4"]


def test_failed_saves_are_counted_in_each_later_step(recorder):
    with TrainingMetrics(Metrics([recorder], log_interval=1)) as callback:
        for step in range(1, 4):
            callback.on_train_step_end(context(step_result(step)))
            callback.on_checkpoint_failed(context(step=step))
    assert [row.values.get("checkpoint-failed-saves") for row in recorder.rows] == [None, 1, 2]


@pytest.mark.parametrize(
    ("per_token", "tokens", "flops"), [(None, 80, 0.0), (10.0, 80, 800.0), (10.0, None, 0.0)]
)
def test_operations_follow_the_tokens_of_a_step(per_token, tokens, flops):
    callback = TrainingMetrics(Metrics([]), flops_per_token=per_token)
    assert callback.flops(step_result(1, tokens=tokens)) == flops
