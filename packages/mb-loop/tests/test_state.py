import json
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mb_loop import LoopState, TrainState, TrainStateError

counters = st.integers(0, 2**62)


@given(step=counters, consumed=counters, operations=counters, valid=st.booleans())
def test_a_state_round_trips(step, consumed, operations, valid):
    state = TrainState(
        step=step,
        consumed_train_samples=consumed,
        floating_point_operations_so_far=operations,
        do_valid=valid,
    )
    other = TrainState()
    other.load_state_dict(state.state_dict())
    assert other == state
    assert {type(value) for value in state.state_dict().values()} == {int, bool}


@pytest.mark.parametrize("change", [{"steps": 3}, None])
def test_a_state_with_other_counters_is_rejected_and_changes_nothing(change):
    stored = {**TrainState(step=5).state_dict(), **(change or {})}
    if change is None:
        del stored["step"]
    state = TrainState(step=1)
    with pytest.raises(TrainStateError, match="step"):
        state.load_state_dict(stored)
    assert state == TrainState(step=1)


def test_the_loops_settings_are_written_with_names_of_signals(tmp_path):
    state = LoopState.of(train_iters=3, iterations_to_skip=range(1, 3))
    state.cfg.train.exit_signal = signal.SIGUSR2
    state.cfg.checkpoint.save = Path("runs/one")
    state.cfg.to_yaml(tmp_path / "run_config.yaml")
    written = json.loads((tmp_path / "run_config.yaml").read_text())
    assert (written["train"]["exit_signal"], written["train"]["train_iters"]) == ("SIGUSR2", 3)
    assert written["checkpoint"]["save"] == "runs/one"
    assert written["train"]["iterations_to_skip"] == [1, 2]
