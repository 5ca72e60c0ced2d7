"""Upstream errors in functions of the same names: the wrong result there, the correct result here.

What has its proof elsewhere is named: 8 is the loop's (state injection); 10 and 12 are the sinks': every metric
goes to every one of them under a name that it can take (test_build.py, test_mlflow.py).
"""

import io
import math
from types import SimpleNamespace

import pytest

from mb_metrics import ConsoleSink, Metrics, report_runtime, report_throughput


def history(steps, seconds=1.0):
    return [seconds * step for step in range(steps)]


def printed(*losses, learning_rate=1e-3, **others):
    console, now = io.StringIO(), [0.0]
    with Metrics(
        [ConsoleSink(console, format="megatron")], log_interval=len(losses), clock=lambda: now[0]
    ) as metrics:
        for step, loss in enumerate(losses, start=1):
            now[0] += 1.0
            metrics.record(step, {"lm loss": loss, "learning-rate": learning_rate, **others}, samples=1)
    return console.getvalue()


def test_1_throughput_counts_the_steps_between_its_time_stamps():
    sizes = SimpleNamespace(global_batch_size=4, micro_batch_size=1)
    window = 5
    report = report_throughput(sizes, 9, 1, history(window + 1), window)
    wrong = (window - 1) / window
    assert (report["throughput/batches_per_sec"], wrong) == (1.0, 0.8)
    assert report_throughput(sizes, 9, 1, history(2), 1)["throughput/batches_per_sec"] == 1.0  # there 0.0


def test_2_the_time_left_after_a_resume_goes_by_the_steps_of_this_job():
    state = SimpleNamespace(step=900, consumed_train_samples=0)
    report = report_runtime(state, 0.0, 1, 1000, start_step=890, clock=lambda: 10.0)
    wrong = 10.0 / (900 / 1000) * (1 - 900 / 1000)
    assert (report["time/remaining_estimate"], round(wrong, 1)) == (100.0, 1.1)
    first = SimpleNamespace(step=0, consumed_train_samples=0)
    assert "time/remaining_estimate" not in report_runtime(first, 0.0, 1, 1000)  # there a division by zero


def test_3_the_gradient_norm_of_two_chunks_is_that_of_both():
    torch = pytest.importorskip("torch")
    from mb_metrics import report_l2_norm_grad

    chunks = [torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(1))]) for _ in range(2)]
    for chunk, gradient in zip(chunks, (3.0, 4.0), strict=True):
        chunk[0].main_grad = torch.tensor([gradient])
    report = report_l2_norm_grad(chunks)
    wrong = math.sqrt(3.0**2 + 3.0**2 + 3.0**2 + 4.0**2)  # the first entry and the first global counted again
    assert (report["l2_norm/grad/global"], round(wrong, 2)) == (5.0, 6.56)
    assert len(report) == 3  # there two parameters of one name are one


def test_4_a_router_reports_its_own_kind_of_balancing():
    pytest.importorskip("torch")
    from mb_metrics.flops.model_shape import FlopsModelShape
    from mb_metrics.recorder.auxiliary_losses import tracked_names

    kind = "seq_aux_loss"
    router = FlopsModelShape({"moe_router_load_balancing_type": kind, "moe_aux_loss_coeff": 0.01})
    assert tracked_names(router) == ["seq_load_balancing_loss"]
    assert "aux_loss" in kind  # which is how load_balancing_loss gets reported there


@pytest.mark.parametrize("loss", [-0.25, math.nan, math.inf])
def test_5_a_loss_that_is_not_positive_is_shown(loss):
    assert f"lm loss: {loss:.6E} |" in printed(loss)  # there only what is >= 0


def test_6_a_rank_without_a_learning_rate_prints_its_line():
    assert "learning rate" not in printed(1.0, learning_rate=None)
    with pytest.raises(TypeError):
        f"{None:.6E}"  # which is what it does there


def test_7_minus_one_is_a_number_and_what_is_true_is_true():
    torch = pytest.importorskip("torch")
    from mb_metrics import (
        logical_and_across_model_parallel_group,
        reduce_max_stat_across_model_parallel_group,
    )

    # On four ranks: test_reductions.py.
    assert reduce_max_stat_across_model_parallel_group(-1.0, None) == -1.0  # there None
    assert logical_and_across_model_parallel_group(torch.tensor(True), None) is True  # there False


def test_9_allocations_that_were_tried_again_are_retries_and_the_ranks_of_memory_are_as_documented():
    pytest.importorskip("torch")
    from mb_metrics import MEMORY_KEYS
    from mb_metrics.profiling.window import is_profiled

    assert MEMORY_KEYS["num_alloc_retries"] == "mem-alloc-retries"  # there "mem-alloc-retires"
    assert is_profiled([], 7)  # there every rank for profilers, and none for memory


def test_11_both_lines_of_an_interval_are_in_one_stream():
    first, second = printed(1.0).splitlines()
    assert first.startswith(" [")
    assert second.startswith("Step Time : ")


def test_13_a_loss_that_is_not_a_number_is_counted_on_steps_that_the_optimizer_took():
    assert "number of nan iterations:   1 |" in printed(1.0, math.nan)


def test_14_the_step_clock_needs_no_timers():
    assert "elapsed time per iteration (ms): 1000.0 |" in printed(1.0, 2.0)
