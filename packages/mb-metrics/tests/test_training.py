"""Training metrics, memory report and profilers, built from configuration sections for a model on one process."""

import io
import json
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from mb_metrics import (  # noqa: E402
    EventRecorder,
    LoggerConfig,
    MetricsOutput,
    ProfilingConfig,
    TensorInspectConfig,
    TensorInspectError,
    build_memory_report,
    build_training_metrics,
    read_event_rows,
    record_run,
    start_profilers,
)
from mb_metrics.flops.model import model_flops_per_token  # noqa: E402
from mb_metrics.flops.peaks import layer_precision  # noqa: E402

from test_training_metrics import context, step_result  # noqa: E402 isort: skip


class OneRank:
    """Process group of this process alone."""

    def rank(self):
        return 0

    def size(self):
        return 1


ALONE = OneRank()
GROUPS = SimpleNamespace(tp=ALONE, pp=ALONE, dp=ALONE, cp=ALONE, dp_cp=ALONE)
TRAIN = SimpleNamespace(micro_batch_size=4, train_iters=2, train_samples=None)


def section(**fields):
    sizes = {"num_layers": 2, "hidden_size": 8, "num_attention_heads": 2, "seq_length": 16}
    return SimpleNamespace(**{**sizes, "params_dtype": "float32", "fp8": None, "fp4": None, **fields})


def run_sections(logger, *, model=None, torch_fsdp2=False, **ddp):
    """Return the sections of a run."""
    wrapper = {"use_megatron_fsdp": False, "use_distributed_optimizer": False, "grad_reduce_in_fp32": True}
    return SimpleNamespace(
        logger=logger,
        model=model or section(),
        train=TRAIN,
        ddp=SimpleNamespace(**{**wrapper, **ddp}),
        dist=SimpleNamespace(use_torch_fsdp2=torch_fsdp2),
        optimizer=SimpleNamespace(decoupled_lr=None),
    )


def wrapped(chunk, *, groups=GROUPS):
    """Return a model on this process alone."""
    return SimpleNamespace(chunks=[chunk], groups=groups, device="cpu", vocab_size=32, modules=None)


def trained(folder, *, sample_lengths=None, norms=None, model=None, flops=None, frozen=False, **logger):
    chunk, stream = torch.nn.Linear(2, 1), io.StringIO()
    chunk.requires_grad_(not frozen)
    with build_training_metrics(
        run_sections(LoggerConfig(log_interval=1, **logger), model=model),
        wrapped(chunk),
        output=MetricsOutput(folder=folder, stream=stream),
        sample_lengths=sample_lengths,
        norms=norms,
        flops=flops,
        step_values=[lambda: {"speed": 1.0}],
    ) as callback:
        for step in (1, 2):
            chunk.weight.grad = torch.full((1, 2), 2.0)
            chunk.bias.grad = torch.ones(1)
            callback.on_before_optimizer_step(context(step=step - 1))
            callback.on_train_step_end(context(step_result(step, losses={"lm loss": torch.tensor(4.0)})))
    file = folder / "metrics.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return rows, stream.getvalue(), callback


def test_a_loop_is_recorded_as_configured(tmp_path):
    rows, text, callback = trained(tmp_path, log_l2_norm_grad_to_tensorboard=True, log_params_norm=True)
    assert [row["step"] for row in rows] == [1, 2]
    assert rows[1]["l2_norm/grad/global"] == pytest.approx(3.0 / 2.0)  # the loss scale is 2
    assert {"params-norm", "speed", "throughput/tflops", "loss-scale"} <= rows[1].keys()
    assert "iteration        2/       2" in text
    assert callback.flops(step_result(1)) > 0


def test_operations_of_a_model_with_frozen_weights_are_given_or_warned_of(tmp_path, caplog):
    trained(tmp_path / "counted", frozen=True)
    assert "TFLOP/s and MFU are too high: 2 of 2 parameters of this rank are frozen" in caplog.text
    caplog.clear()
    callback = trained(tmp_path / "given", frozen=True, flops=10.0)[-1]
    assert not caplog.text
    assert callback.flops(step_result(1)) == 10.0 * step_result(1).tokens


def test_nothing_is_measured_with_skip_train_metrics_log(tmp_path):
    skipped = {"skip_train_metrics_log": True, "log_params_norm": True}
    assert trained(tmp_path, **skipped)[:2] == ([], "")


def test_attention_of_samples_of_different_lengths_is_that_of_their_lengths(tmp_path):
    model = section(window_size=(3, 0))
    callback = trained(tmp_path, model=model, sample_lengths={2: 1.5, 10: 0.5})[-1]
    per_token = model_flops_per_token(model, seq_length=[2, 2, 2, 10], vocab_size=32).total
    assert callback.flops(step_result(1)) == per_token * step_result(1).tokens


def test_norms_of_a_custom_parallel_layout_replace_those_of_one_model(tmp_path):
    norms = SimpleNamespace(
        gradients=lambda *, loss_scale: {"l2_norm/grad/global": 7.0}, parameters=lambda: 9.0
    )
    logger = {"log_l2_norm_grad_to_tensorboard": True, "log_params_norm": True}
    row = trained(tmp_path, norms=norms, **logger)[0][-1]
    assert (row["l2_norm/grad/global"], row["params-norm"]) == (7.0, 9.0)


def test_a_model_whose_flops_are_unknown_has_no_tflops(tmp_path, caplog):
    rows, _, callback = trained(tmp_path, model=section(num_layers=None))
    assert "throughput/tflops" not in rows[-1]
    assert callback.flops(step_result(1)) == 0
    assert "no TFLOP/s: model.num_layers: must be a positive integer" in caplog.text


def recorded(folder, *, output=True, start_step=0, **logger):
    """Record one step after `start_step` and the end of training; return the callbacks and the printed lines."""
    lines = []
    with record_run(
        run_sections(LoggerConfig(log_interval=1, **logger)),
        wrapped(torch.nn.Linear(2, 1)),
        output=MetricsOutput(folder=folder, stream=io.StringIO(), **DESCRIPTION) if output else None,
        start_step=start_step,
        print_line=lines.append,
    ) as recorders:
        step = start_step + 1
        for callback in recorders.callbacks:
            if isinstance(callback, EventRecorder):
                callback.on_train_start(context(step=start_step))
            callback.on_train_step_end(
                context(step_result(step, losses={"lm loss": torch.tensor(4.0)}), step=step)
            )
            if isinstance(callback, EventRecorder):
                callback.on_train_end(context(step=step, outcome=SimpleNamespace(reason="finished")))
    return recorders, lines


DESCRIPTION = {"description": {"recipe": "tiny"}, "resume_description": {"changes": {"a": [1, 2]}}}


def test_a_run_is_recorded_with_its_events_and_its_memory(tmp_path):
    recorders, lines = recorded(tmp_path)
    recorded(tmp_path, start_step=1)
    assert [type(each).__name__ for each in recorders.callbacks] == [
        "TrainingMetrics",
        "EventRecorder",
        "MemoryReport",
    ]
    assert [line.split(":")[0] for line in lines] == ["Theoretical memory footprints"]
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2]
    start, stop, resume, _ = read_event_rows(tmp_path / "events.jsonl")
    assert (start["event"], start["recipe"], stop["reason"]) == ("start", "tiny", "finished")
    assert (resume["previous_step"], resume["changes"]) == (1, {"a": [1, 2]})


def test_ranks_that_do_not_write_record_the_same_metrics_and_no_event(tmp_path):
    recorders, lines = recorded(tmp_path, output=False, skip_train_metrics_log=True)
    assert (recorders.events, recorders.memory, lines, list(tmp_path.iterdir())) == (None, None, [], [])


@pytest.mark.parametrize(
    ("fields", "precision"),
    [
        ({}, "float32"),
        ({"params_dtype": "bfloat16"}, "bfloat16"),
        ({"fp8": "hybrid"}, "fp8"),
        ({"fp4": "e2m1", "fp8": "hybrid"}, "fp4"),
    ],
)
def test_mfu_is_a_fraction_of_the_peak_of_the_layers_precision(fields, precision):
    assert layer_precision(section(**fields)) == precision


def memory_lines(*, steps, model=None, logger=None, torch_fsdp2=False, **ddp):
    lines = []
    groups = SimpleNamespace(dp=ALONE, dp_cp=SimpleNamespace(rank=lambda: 0, size=lambda: 4))
    report = build_memory_report(
        run_sections(logger or LoggerConfig(log_interval=2), model=model, torch_fsdp2=torch_fsdp2, **ddp),
        wrapped(torch.nn.Linear(1024, 1024, bias=False), groups=groups),
        print_line=lines.append,
    )
    if report is not None:
        report.on_train_step_end(context(None))
        for step in range(1, steps + 1):
            report.on_train_step_end(context(step_result(step)))
    return lines


def weights(megabytes):
    return f"Theoretical memory footprints: weight and optimizer={megabytes:.2f} MB"


@pytest.mark.parametrize(
    ("ddp", "megabytes"),
    [
        ({}, 4 * (4 + 4 + 8) / 4),
        ({"use_distributed_optimizer": True}, 4 + 4 + 8 / 4),
        ({"use_megatron_fsdp": True}, (4 + 4 + 8) / 4),
        ({"torch_fsdp2": True}, (4 + 4 + 8) / 4),
    ],
)
def test_the_theoretical_memory_follows_the_sharding(ddp, megabytes):
    assert memory_lines(steps=2, **ddp) == [weights(megabytes)]


def test_half_precision_gradients_take_two_bytes():
    half = section(params_dtype="bfloat16")
    assert memory_lines(steps=2, model=half, grad_reduce_in_fp32=False) == [weights(4 + 2 + 8)]


def test_memory_is_reported_after_the_first_two_intervals():
    assert len(memory_lines(steps=8)) == 2
    assert memory_lines(steps=1) == []
    assert memory_lines(steps=4, logger=LoggerConfig(skip_train_metrics_log=True)) == []


def test_activations_of_a_dense_model_are_added():
    selective = {"sequence_parallel": True, "recompute_granularity": "selective", "ffn_hidden_size": 32}
    (line,) = memory_lines(steps=2, model=section(**selective))
    assert line.startswith(f"{weights(16.0)}, activation=")


def test_profilers_write_the_trace_of_their_window(tmp_path):
    settings = ProfilingConfig(use_pytorch_profiler=True, profile_step_start=1, profile_step_end=2)
    profilers = start_profilers(settings, None, folder=tmp_path)
    (callback,) = profilers.attach([torch.nn.Linear(1, 1)])
    for step in range(3):
        callback.on_train_step_start(context(step=step))
        callback.on_train_step_end(context(step=step + 1))
    callback.on_train_end(context(step=3))
    assert (tmp_path / "torch_profile" / "rank-0.json.gz").is_file()


@pytest.mark.parametrize(
    "settings", [None, ProfilingConfig(), ProfilingConfig(use_pytorch_profiler=True, profile_ranks=[1])]
)
def test_without_a_profiler_on_this_rank_nothing_is_called(tmp_path, settings):
    assert start_profilers(settings, None, folder=tmp_path).attach([]) == []


def test_tensor_inspection_that_cannot_start_is_an_error(tmp_path):
    with pytest.raises(TensorInspectError, match=r"tensor_inspect\.features: no features are set"):
        start_profilers(None, TensorInspectConfig(enabled=True), folder=tmp_path)
