"""Parts of a drill: planning, the callback that injects, and changes of files."""

import random
from types import SimpleNamespace

import pytest

from mb_verify import (
    FAULTS,
    FaultRequest,
    InjectedFault,
    callbacks_from_environment,
    plan_faults,
)
from mb_verify.drill.fault_callback import with_nan
from mb_verify.drill.fault_injectors import change_byte, delete, newest_checkpoint, why_not_mounted
from mb_verify.drill.plan import read_kinds
from mb_verify.drill.progress import StartProgress
from mb_verify.drill.report import RunResult, gaps_of
from mb_verify.errors import DrillError, InjectedFaultError, RecordingRequestError


def test_kinds_are_read_by_name():
    assert read_kinds(["nan", "kill"]) == ("kill", "nan")
    assert read_kinds([]) == tuple(FAULTS)
    with pytest.raises(DrillError, match=r"faults: fire unknown. Choose from kill"):
        read_kinds(["kill", "fire"])


def test_faults_come_before_the_last_step_on_ranks_of_the_run():
    drawn = [
        fault
        for seed in range(50)
        for fault in plan_faults(("kill",), steps=3, processes=2, rng=random.Random(seed))
    ]
    assert ({each.step for each in drawn}, {each.rank for each in drawn}) == ({1, 2}, {0, 1})


class Module:
    def __init__(self):
        self.hook = None

    def register_forward_hook(self, hook):
        self.hook = hook
        return SimpleNamespace(remove=lambda: setattr(self, "hook", None))


class Output(float):
    def is_floating_point(self):
        return True


def injected(kind, tmp_path, *, rank=1, steps=(1, 2, 3)):
    """Run steps with a fault in step 2; return (steps whose output is NaN or raised, seconds slept)."""
    request = FaultRequest(kind=kind, rank=1, step=2, seconds=0.5, mark=str(tmp_path / "mark"))
    slept, model, changed = [], Module(), []
    (fault,) = callbacks_from_environment(request.variables(), rank=rank)
    assert isinstance(fault, InjectedFault)
    fault = InjectedFault(request, rank=rank, sleep=slept.append)
    for step in steps:
        context = SimpleNamespace(
            model=[model], state=SimpleNamespace(train_state=SimpleNamespace(step=step - 1))
        )
        fault.on_train_step_start(context)
        output = model.hook(model, (), Output(1.0)) if model.hook else 1.0
        changed += [step] if output != output else []
        fault.on_train_step_end(context)
    return changed, slept


def test_a_callback_injects_in_its_step_on_its_rank(tmp_path):
    assert injected("nan", tmp_path, rank=0) == ([], [])
    assert not (tmp_path / "mark").exists()
    assert injected("nan", tmp_path) == ([2], [])
    assert float((tmp_path / "mark").read_text()) > 0
    assert injected("nan", tmp_path, steps=[1, 3, 4]) == ([3], [])  # step 2 is in train.iterations_to_skip
    assert injected("slow", tmp_path, steps=range(1, 7)) == ([], [0.5, 0.5, 0.5])
    with pytest.raises(InjectedFaultError, match="raised in step 2 on rank 1"):
        injected("raise", tmp_path)


def test_nan_reaches_the_tensors_of_any_output():
    found = with_nan({"loss": (Output(1.0), [Output(2.0)]), "count": 3})
    assert (found["loss"][0] != found["loss"][0], found["loss"][1][0] > 0, found["count"]) == (True, False, 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nan", "MB_VERIFY_FAULT: 'nan' is not a request of a fault"),
        ('{"kind": "nan"}', "Set a JSON object with kind, rank, step, seconds, mark"),
        (
            '{"kind": "kill", "rank": 0, "step": 1, "seconds": 0, "mark": ""}',
            "kind 'kill' is not injected by a callback",
        ),
    ],
)
def test_a_malformed_request_is_rejected(text, message):
    with pytest.raises(RecordingRequestError, match=message):
        callbacks_from_environment({"MB_VERIFY_FAULT": text})


def test_the_newest_checkpoint_is_that_of_the_highest_step(tmp_path):
    assert newest_checkpoint(tmp_path / "missing") is None
    for name in ("iter_0000009", "iter_0000010", ".saving_iter_0000011", "latest"):
        (tmp_path / name).mkdir()
    assert newest_checkpoint(tmp_path).name == "iter_0000010"


def test_a_byte_of_the_largest_file_is_changed(tmp_path):
    (tmp_path / "small").write_bytes(b"ab")
    (tmp_path / "large").write_bytes(b"abcd")
    change_byte(tmp_path)
    assert ((tmp_path / "small").read_bytes(), (tmp_path / "large").read_bytes()) == (b"ab", b"ab\x9cd")


def test_a_folder_is_deleted_at_once(tmp_path):
    (tmp_path / "checkpoints" / "iter_1").mkdir(parents=True)
    delete(tmp_path / "checkpoints")
    delete(tmp_path / "checkpoints")
    assert list(tmp_path.iterdir()) == []


def test_without_the_right_to_mount_the_reason_is_named(tmp_path, monkeypatch):
    (tmp_path / "mount").write_text("#!/bin/sh\necho 'mount: permission denied.' >&2; exit 32\n")
    (tmp_path / "mount").chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    expected = "mounting a file system needs root: mount: permission denied."
    assert why_not_mounted(tmp_path / "runs") == expected


def test_a_step_that_the_run_leaves_out_takes_as_long_as_the_next_one():
    start = StartProgress(began_at=0, completed={2: 110.0, 3: 111.0, 5: 114.0})  # iterations_to_skip=[1, 4]
    run = RunResult(starts=(start,), ends=("",), began=100.0, complete=True, values={})
    assert gaps_of(run) == {1: 10.0, 2: 10.0, 3: 1.0, 4: 3.0, 5: 3.0}
