"""A wrong loss on one rank: all ranks exit with the rerun machine's exit code, and resume from its checkpoint."""

import pytest
from runs import events, mb


@pytest.mark.slow
def test_a_persistent_fault_on_two_ranks_is_exit_code_16_and_reported_once(overrides, tmp_path):
    words = ["rerun_state_machine.rerun_mode=validate_results", "rerun_state_machine.error_injection_rate=1"]
    words += ["rerun_state_machine.error_injection_type=persistent_error", "train.train_iters=4"]
    command = ["pretrain", *overrides, *words, "--nproc", "2", "--out", str(tmp_path / "run")]
    for _ in range(2):  # the second run is on the same device, which does not settle it
        ended = mb(*command)
        assert (ended.returncode, ended.stderr) == (16, "")
        assert "stopped at step 2, which does not count: its result was rejected" in ended.stdout
    saved = [event for event in events(tmp_path / "run") if event[0] == "save"]
    assert saved == [("save", 1)]
