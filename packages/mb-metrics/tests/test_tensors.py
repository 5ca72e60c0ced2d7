import math
from typing import ClassVar

import pytest

torch = pytest.importorskip("torch")

from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import distribute_tensor  # noqa: E402

from mb_metrics import Metrics  # noqa: E402

HOST_READS = {
    "item",
    "tolist",
    "cpu",
    "to",
    "numpy",
    "__float__",
    "__int__",
    "__bool__",
    "__index__",
    "__format__",
}


class Watched(torch.Tensor):
    """A tensor that counts host synchronizations."""

    reads: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") in HOST_READS:
            cls.reads.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


def test_tensors_and_numbers_keep_their_order_and_their_values(recorder):
    with Metrics([recorder]) as metrics:
        metrics.record(
            1,
            {
                "lm loss": torch.tensor(2.5, requires_grad=True),
                "learning-rate": 1e-3,
                "grad-norm": torch.tensor([1.5], dtype=torch.bfloat16),
                "num-zeros": torch.tensor(2**24 + 1),
                "z_loss": torch.tensor(-0.5),
                "ok": torch.tensor(True),
            },
        )
        metrics.record(2, {"lm loss": torch.tensor(math.inf)})
        metrics.record(3, {"lm loss": 1.0})
        metrics.evaluation(3, {"lm loss": torch.tensor(0.25)})
    first = list(recorder.rows[0].values.items())
    assert first == [
        ("lm loss", 2.5),
        ("learning-rate", 1e-3),
        ("grad-norm", 1.5),
        ("num-zeros", 2**24 + 1),
        ("z_loss", -0.5),
        ("ok", 1.0),
    ]
    assert [row.values["lm loss"] for row in recorder.rows] == [2.5, math.inf, 1.0]
    assert recorder.evaluations[0].losses == {"lm loss": 0.25}


def test_no_host_read_between_intervals_and_one_at_each(recorder):
    metrics = Metrics([recorder], log_interval=10)
    Watched.reads.clear()
    seen = []
    for step in range(1, 31):
        metrics.record(
            step, {"a": torch.tensor(1.0).as_subclass(Watched), "b": torch.ones(1).as_subclass(Watched)}
        )
        seen.append([read for read in Watched.reads if read != "to"])
        Watched.reads.clear()
    assert [step for step, reads in enumerate(seen, start=1) if reads] == [10, 20, 30]
    assert seen[9] == ["tolist"]
    assert recorder.steps == list(range(1, 31))


def test_a_buffer_that_is_used_again_keeps_each_steps_value(recorder):
    loss = torch.zeros(())
    with Metrics([recorder], log_interval=3) as metrics:
        for step in (1, 2, 3):
            loss += 1
            metrics.record(step, {"lm loss": loss})
    assert [row.values["lm loss"] for row in recorder.rows] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("shape", [(0,), (3,), (2, 2)])
def test_a_tensor_that_is_not_one_number_is_rejected(recorder, shape):
    with pytest.raises(ValueError, match="'lm loss' has shape"):
        Metrics([recorder]).record(1, {"lm loss": torch.ones(shape)})


def test_a_value_that_is_distributed_over_ranks_is_rejected(recorder):
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        spread = distribute_tensor(torch.ones(()), init_device_mesh("cpu", (1,)))
        with pytest.raises(TypeError, match="distributed over ranks"):
            Metrics([recorder]).record(1, {"grad-norm": spread})
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_is_never_waited_for_between_intervals(recorder):
    values = [torch.full((), float(step), device="cuda") for step in range(31)]
    metrics = Metrics([recorder], log_interval=10)
    torch.cuda.synchronize()
    for step in range(1, 31):
        torch.cuda.set_sync_debug_mode("error" if step % 10 else "default")
        metrics.record(step, {"lm loss": values[step], "learning-rate": 1e-3})
    torch.cuda.set_sync_debug_mode("default")
    metrics.close()
    assert [row.values["lm loss"] for row in recorder.rows] == [float(step) for step in range(1, 31)]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_rows_from_a_busy_device_come_later_and_not_wrong(recorder):
    metrics = Metrics([recorder], log_interval=1)
    torch.cuda._sleep(2_000_000_000)
    metrics.record(1, {"lm loss": torch.ones((), device="cuda")})
    assert recorder.steps == []
    metrics.flush()
    assert recorder.rows[0].values["lm loss"] == 1.0


def test_a_device_that_failed_does_not_hide_what_ended_the_run(recorder, caplog):
    """A tensor without storage simulates a failed device: reading it raises a RuntimeError."""

    def train(error):
        with Metrics([recorder]) as metrics:
            metrics.record(1, {"lm loss": torch.ones((), device="meta")})
            if error:
                raise error

    with pytest.raises(KeyError):
        train(KeyError("the loop's"))
    assert "could not be read from the device" in caplog.text
    with pytest.raises(RuntimeError, match="meta"):
        train(None)
