"""Recording without Megatron: the callback with a small reader, and a plain PyTorch loop."""

from types import SimpleNamespace

import pytest

from mb_verify import Recorder, RecordFile, compare, read_record
from mb_verify.errors import VerificationError


class CounterReader:
    """Reader of a model that is one number."""

    reads_data = True

    def __init__(self, context):
        self.model = context.model

    def state(self, context, *, complete=False):
        return {"parameters: number": repr(self.model["number"])}

    def step(self, context):
        return {"losses: loss": repr(-self.model["number"])}


def run(folder, first, last, *, start=0, number=0.0, reason="finished"):
    """Fire the events of a loop that adds 0.5 to the model in each step."""
    recorder = Recorder(
        folder, rank=0, start=start, reader=CounterReader, conditions=lambda: {"threads": "1"}
    )
    state = SimpleNamespace(train_state=SimpleNamespace(step=first))
    context = SimpleNamespace(state=state, model={"number": number}, outcome=None)
    recorder.on_train_start(context)
    for _ in range(first, last):
        recorder.on_train_step_start(context)
        context.model["number"] += 0.5
        state.train_state.step += 1
        recorder.on_train_step_end(context)
    context.outcome = SimpleNamespace(reason=reason)
    recorder.on_train_end(context)
    return context.model["number"]


def test_a_resume_with_the_saved_number_is_exact_and_one_without_is_not(tmp_path):
    run(tmp_path / "uninterrupted", 0, 6)
    saved = run(tmp_path / "interrupted", 0, 3, reason="interval")
    run(tmp_path / "interrupted", 3, 6, start=1, number=saved)
    uninterrupted = read_record(tmp_path / "uninterrupted")
    verdict = compare(uninterrupted, read_record(tmp_path / "interrupted"))
    assert (verdict.equal, verdict.resumed_at, verdict.loaded_equal) == (True, (3,), True)

    run(tmp_path / "faulty", 0, 3, reason="interval")
    run(tmp_path / "faulty", 3, 6, start=1, number=0.0)
    verdict = compare(uninterrupted, read_record(tmp_path / "faulty"))
    assert str(verdict.first) == (
        "parameters: number, after step 3, rank 0: 1.5 in the uninterrupted run, 0.0 in the interrupted one"
    )
    assert verdict.loaded_equal is False


def test_a_failed_run_records_no_final_state(tmp_path):
    recorder = Recorder(tmp_path, rank=0, start=0, reader=CounterReader, conditions=dict)
    state = SimpleNamespace(train_state=SimpleNamespace(step=0))
    context = SimpleNamespace(state=state, model={"number": 0.0}, outcome=None)
    recorder.on_train_start(context)
    recorder.on_train_step_start(context)
    recorder.on_train_end(context)
    assert len((tmp_path / "rank-0.0.jsonl").read_text().splitlines()) == 2


def test_events_before_the_start_are_an_error(tmp_path):
    recorder = Recorder(tmp_path, rank=0, start=0)
    context = SimpleNamespace(state=SimpleNamespace(train_state=SimpleNamespace(step=0)))
    with pytest.raises(RuntimeError, match="Fire on_train_start first"):
        recorder.on_train_step_start(context)


def test_a_plain_loop_records_parameters_optimizer_and_random_streams(tmp_path):
    torch = pytest.importorskip("torch")
    from mb_verify import read_torch_state, read_torch_step

    torch.manual_seed(1)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    batch = torch.ones(3, 2)
    loss = model(batch).sum()
    loss.backward()
    optimizer.step()
    state = read_torch_state(model, optimizer, scheduler=scheduler, counters={"step": 1})
    assert {"counters: step", "parameters: weight", "optimizer: exp_avg of bias"} <= state.keys()
    assert {"random streams: torch_rng_state", "optimizer: group 0 lr"} <= state.keys()
    step = read_torch_step(losses={"loss": loss}, samples={"x": batch}, grad_norm=0.5, learning_rate=1e-3)
    assert step["losses: loss"] == repr(loss.item())
    assert len(step["samples: x"].split(",")) == 3
    record = RecordFile(tmp_path)
    record.start(0)
    record.step(1, step)
    record.state(1, state)
    assert compare(read_record(tmp_path), read_record(tmp_path)).equal


def test_values_without_a_category_or_a_start_are_rejected(tmp_path):
    record = RecordFile(tmp_path)
    with pytest.raises(VerificationError, match=r"is not started\. Call start\(\)"):
        record.step(1, {"losses: loss": "1.0"})
    record.start(0)
    for values in ({"loss": "1.0"}, {"losses": {"loss": "1.0"}}):
        with pytest.raises(VerificationError, match="has no category"):
            record.step(1, values)


def test_a_missing_folder_is_no_record(tmp_path):
    with pytest.raises(VerificationError, match="absent: no such folder"):
        read_record(tmp_path / "absent")


def test_a_second_start_has_the_next_number(tmp_path):
    for first in (0, 3):
        record = RecordFile(tmp_path)
        record.start(first)
        record.step(first + 1, {"losses: loss": "1"})
    assert read_record(tmp_path).started_at == (0, 3)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["rank-0.0.jsonl", "rank-0.1.jsonl"]


def test_a_start_is_recorded_once(tmp_path):
    RecordFile(tmp_path, start=0).start(0)
    with pytest.raises(
        VerificationError, match=r"rank-0.0.jsonl: this start was recorded before, .* MB_VERIFY_START"
    ):
        RecordFile(tmp_path, start=0).start(3)


@pytest.mark.parametrize("value", [[1], {"a": 1}, 1j, b"a"])
def test_a_value_is_text_or_a_number(tmp_path, value):
    record = RecordFile(tmp_path)
    record.start(0)
    with pytest.raises(
        VerificationError, match=r"'losses: loss' is a \w+, which is neither text nor a number"
    ):
        record.step(1, {"losses: loss": value})
