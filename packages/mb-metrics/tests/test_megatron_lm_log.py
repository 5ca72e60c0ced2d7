"""Megatron-LM's own call of `training_log`."""

import inspect
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from mb_metrics import Metrics, training_log  # noqa: E402
from mb_metrics.errors import TrainingLogCallError  # noqa: E402
from mb_metrics.run.megatron_lm_log import log_megatron_lm_step  # noqa: E402


def arguments(**changed):
    """Return Megatron-LM's arguments."""
    values = {
        "log_interval": 1,
        "log_memory_to_tensorboard": False,
        "micro_batch_size": 1,
        "global_batch_size": 4,
    }
    values |= {"rampup_batch_size": None, "seq_length": 16, "consumed_train_samples": 12, "iteration": 0}
    return SimpleNamespace(**values, **changed)


STEP = {
    "loss_dict": {"lm loss": torch.tensor(2.0)},
    "learning_rate": 1e-3,
    "iteration": 3,
    "loss_scale": 1.0,
    "report_memory_flag": False,
    "skipped_iter": 0,
    "grad_norm": torch.tensor(0.5),
    "params_norm": None,
    "num_zeros_in_grad": None,
    "max_attention_logit": None,
}


@pytest.mark.parametrize("tokens", [None, 50.0])
def test_the_call_of_megatron_lm_is_recorded(tokens):
    recorded = []
    metrics = SimpleNamespace(record=lambda step, values, **more: recorded.append((step, dict(values), more)))
    totals = {}
    training_log(
        **STEP, total_loss_dict=totals, total_real_tokens_in_batch=tokens, metrics=metrics, args=arguments()
    )
    ((step, values, more),) = recorded
    assert (step, values["lm loss"], values["learning-rate"]) == (3, 2.0, 1e-3)
    assert (more["samples"], more["tokens"], more["consumed_samples"]) == (4, tokens or 64, 12)
    assert totals["advanced iterations"] == 0  # the log interval resets them


def test_the_positions_are_those_of_megatron_lm():
    recorded = []
    metrics = SimpleNamespace(record=lambda step, values, **more: recorded.append(step))
    values = [STEP["loss_dict"], {}, *list(STEP.values())[1:]]
    training_log(*values, None, True, metrics=metrics, args=arguments())
    assert recorded == [3]


def test_the_signature_is_that_of_the_installed_megatron_lm():
    pytest.importorskip("mb_host").install()
    training = pytest.importorskip("megatron.training.training")
    theirs = list(inspect.signature(training.training_log).parameters)
    assert list(inspect.signature(log_megatron_lm_step).parameters)[: len(theirs)] == theirs


def test_a_growing_batch_is_that_of_megatrons_calculator(monkeypatch):
    recorded = []
    metrics = SimpleNamespace(record=lambda step, values, **more: recorded.append(more["samples"]))
    calculator = SimpleNamespace(get_current_global_batch_size=lambda: 2)
    monkeypatch.setattr("mb_metrics.run.megatron_lm_log.import_module", lambda name: calculator)
    args = arguments()
    args.rampup_batch_size = [2, 2, 100]
    training_log(**STEP, total_loss_dict={}, metrics=metrics, args=args)
    assert recorded == [2]


def test_the_model_of_the_caller_is_read_for_experts():
    model = [torch.nn.Linear(2, 2)]
    model[0].config = SimpleNamespace(num_layers=1, hidden_size=2)
    with Metrics([]) as metrics:
        assert (
            training_log(**STEP, total_loss_dict={}, metrics=metrics, args=arguments(), model=model) is False
        )


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"config": None},
            "config of Megatron-Bridge's call and iteration, max_attention_logit of Megatron-LM's exclude",
        ),
        ({}, "args and metrics missing"),
    ],
)
def test_calls_that_are_neither(more, message):
    with pytest.raises(TrainingLogCallError, match=message):
        training_log(**STEP, total_loss_dict={}, **more)
