"""Values that the trainer passes to the metrics, and the steps in which it reads attention logits."""

from types import SimpleNamespace

import mb_host

mb_host.install()

import pytest  # noqa: E402
import torch  # noqa: E402

from mb_checkpoint import DataloaderStateError  # noqa: E402
from mb_loop import CallbackContext, StepResult, TrainState  # noqa: E402
from mb_trainer.positions import put_others_alike, say_without_position  # noqa: E402
from mb_trainer.recording import MetricsRecorder  # noqa: E402
from mb_trainer.run import Run  # noqa: E402


class Metrics:
    """Stub of the metrics that keeps the values of the last step."""

    def record(self, step, values, **more):
        self.values = {name: value for name, value in values.items() if value is not None}


def recorded(result, *, skipped=0, **settings):
    metrics = Metrics()
    measured = SimpleNamespace(
        metrics=metrics, at_interval=lambda step, samples: {}, tokens=lambda result: None
    )
    state = SimpleNamespace(train_state=TrainState(step=result.step, skipped_train_samples=skipped))
    optimizer = SimpleNamespace(get_loss_scale=lambda: 1.0)
    context = CallbackContext(state=state, model=[], optimizer=optimizer, result=result)
    MetricsRecorder(measured, **settings).on_train_step_end(context)
    return metrics.values


def test_rates_skipped_samples_and_the_largest_logit_have_their_names():
    result = StepResult(
        step=3, losses={}, samples=8, learning_rate=0.5, decoupled_learning_rate=0.1, max_attention_logit=7.0
    )
    common = {"learning-rate": 0.5, "max-attention-logit": 7.0, "loss-scale": 1.0}
    assert recorded(result) == common
    assert recorded(result, skipped=16, decoupled_rate=True) == {
        **common, "decoupled-learning-rate": 0.1, "skipped-train-samples": 16
    }  # fmt: skip


class Attention(torch.nn.Module):
    """Stub of an attention layer with a maximum logit of 9 that records whether it clips."""

    def __init__(self):
        super().__init__()
        self.core_attention, self.clipped = torch.nn.Linear(1, 1), False
        self.core_attention.current_max_attn_logits = torch.tensor([9.0])

    def clip_qk(self):
        self.clipped = True


@pytest.mark.parametrize(
    ("clip", "log", "answer"),
    [
        (False, False, None),
        (False, True, (9.0, False)),
        (True, False, (9.0, True)),
        (True, True, (9.0, True)),
    ],
)
def test_attention_logits_are_read_and_clipped_by_as_the_model_asks(clip, log, answer):
    model, layer = SimpleNamespace(qk_clip=clip, log_max_attention_logit=log), Attention()
    config = SimpleNamespace(model=model)
    run = SimpleNamespace(
        job=SimpleNamespace(config=config), trainee=SimpleNamespace(chunks=[layer]), groups=None
    )
    logits = Run.attention_logits(run)
    assert (None if logits is None else (logits(successful=True).item(), layer.clipped)) == answer


class Stream:
    def __init__(self, position=0):
        self.position = position

    def save_state(self):
        return self.position

    def restore_state(self, state):
        self.position = state


def test_chunks_of_one_stage_read_on_at_the_same_place():
    chunks = [SimpleNamespace(iterable=Stream(position)) for position in (5, 0, 0)]
    put_others_alike(chunks)
    assert [chunk.iterable.position for chunk in chunks] == [5, 5, 5]


def test_only_a_loader_without_a_position_is_refused_where_one_is_asked_for():
    config = SimpleNamespace(
        checkpoint=SimpleNamespace(non_persistent_ckpt_type="local"),
        dataset=SimpleNamespace(dataloader_save="positions", dataloader_load=None),
    )
    say_without_position(config, SimpleNamespace(iterable=Stream()), voice=None)
    with pytest.raises(DataloaderStateError, match="so there is no position"):
        say_without_position(config, iter([]), voice=None)
