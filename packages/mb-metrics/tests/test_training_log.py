import io
import math
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from mb_metrics import ConsoleSink, LoggerConfig, Metrics, training_log  # noqa: E402

CLOUDAI = r"Step Time\s*:\s*([0-9.]+)\s*s.*?GPU utilization:\s*([0-9.]+)\s*(?:MODEL_)?TFLOP/s/GPU"


class Run:
    """A loop in Megatron's style, on one process."""

    def __init__(self, sink, clock, *, log_interval=2, start=0, **model):
        self.metrics = Metrics([sink], log_interval=log_interval, flops_per_token=1e9, clock=clock)
        self.clock, self.totals, self.flag, self.printed = clock, {}, True, []
        self.start, self.grad_norm = start, torch.tensor(0.5)
        self.state = SimpleNamespace(
            train_state=SimpleNamespace(
                step=start, consumed_train_samples=8 * start, skipped_train_samples=0
            ),
            metrics=self.metrics,
        )
        self.config = SimpleNamespace(
            logger=LoggerConfig(log_interval=log_interval, log_l2_norm_grad_to_tensorboard=True),
            train=SimpleNamespace(global_batch_size=8, micro_batch_size=2),
            model={"num_layers": 1, "hidden_size": 4, **model},
        )
        self.model = [torch.nn.Linear(2, 2)]

    def step(self, *losses, learning_rate=1e-3, skipped=0):
        self.clock.now += 2.0
        self.state.train_state.step += 1
        self.state.train_state.consumed_train_samples += 8
        self.flag = training_log(
            {f"loss {index}": torch.tensor(loss) for index, loss in enumerate(losses)},
            self.totals,
            learning_rate,
            None,
            1.0,
            self.flag,
            skipped,
            self.grad_norm,
            None,
            None,
            self.config,
            self.state,
            [],
            self.model,
            loaded_iteration=self.start,
            seq_length=16,
            print_line=self.printed.append,
        )


def test_one_stream_has_both_lines_and_tools_can_read_them(clock):
    console = io.StringIO()
    run = Run(ConsoleSink(console, format="megatron"), clock)
    run.step(1.0)
    run.step(3.0)
    lines = console.getvalue().splitlines()
    assert "consumed samples:           16 |" in lines[0]
    assert "| learning rate: 1.000000E-03 | global batch size:     8 | loss 0: 2.000000E+00 |" in lines[0]
    assert re.search(CLOUDAI, lines[1]).groups() == ("2.00", "0.1")


def test_a_loss_is_shown_and_counted_as_it_is_on_steps_that_the_optimizer_took_too(clock):
    console = io.StringIO()
    run = Run(ConsoleSink(console, format="megatron"), clock)
    run.step(-1.5, math.nan)
    run.step(-2.5, 1.0)
    line = console.getvalue().splitlines()[0]
    assert "| loss 0: -2.000000E+00 | loss 1: NAN |" in line
    assert "number of skipped iterations:   0 | number of nan iterations:   1 |" in line


def test_a_rank_that_trains_nothing_has_no_learning_rate_and_prints_none(clock):
    console = io.StringIO()
    run = Run(ConsoleSink(console, format="megatron"), clock, log_interval=1)
    run.step(1.0, learning_rate=None)
    assert "learning rate" not in console.getvalue()


def test_counters_and_sums_are_reset_at_each_log_interval(recorder, clock):
    run = Run(recorder, clock, log_interval=3)
    run.step(1.0)
    run.step(math.inf, skipped=1)
    assert {name: float(total) for name, total in run.totals.items()} == {
        "advanced iterations": 1,
        "skipped iterations": 1,
        "loss 0": 1.0,
        "nan iterations": 1,
    }
    run.step(3.0)
    assert {float(total) for total in run.totals.values()} == {0.0}
    assert (recorder.intervals[0].skipped_steps, recorder.intervals[0].nonfinite_steps) == (1, 1)
    assert recorder.intervals[0].mean_losses == {"loss 0": 2.0}


def test_gradient_norms_come_at_log_intervals(recorder, clock):
    run = Run(recorder, clock)
    run.model[0].weight.grad = torch.tensor([[0.0, 3.0], [4.0, 0.0]])
    run.step(1.0)
    run.step(1.0)
    first, second = recorder.rows
    assert "l2_norm/grad/global" not in first.values
    assert second.values["l2_norm/grad/weight"] == second.values["l2_norm/grad/global"] == 5.0


def test_gradient_norms_are_those_before_the_optimizer_clipped(recorder, clock):
    run = Run(recorder, clock, log_interval=1)
    run.model[0].weight.grad, run.grad_norm = torch.tensor([[0.0, 0.6], [0.8, 0.0]]), torch.tensor(5.0)
    run.step(1.0)
    values = recorder.rows[0].values
    assert values["l2_norm/grad/weight"] == values["l2_norm/grad/global"] == pytest.approx(5.0)


@pytest.mark.parametrize(("log_interval", "start"), [(1, 0), (1, 7), (5, 0), (5, 7), (5, 10)])
def test_memory_is_printed_on_the_first_two_log_intervals_of_a_job(recorder, clock, log_interval, start):
    run = Run(recorder, clock, log_interval=log_interval, start=start)
    for _ in range(4 * log_interval):
        run.step(1.0)
    line = "Theoretical memory footprints: weight and optimizer=0.00 MB"
    assert [each for each in run.printed if each.startswith("Theor")] == [line] * 2
    assert not run.flag


def test_on_ranks_the_last_one_writes_what_all_of_them_measured(four_ranks):
    mb_host = pytest.importorskip("mb_host")
    log = mb_host.function_in(Path(__file__).with_name("moe_ranks.py"), "log_two_steps")
    *others, (first, second) = four_ranks.run(log)
    assert others == [[], [], []]
    assert "load_balancing_loss" not in first
    assert second["load_balancing_loss"] == 3.0  # the mean of 2 and 4, over 4 microbatches each
    assert second["learning-rate"] == 0.5  # of a rank that trains; this one has none
