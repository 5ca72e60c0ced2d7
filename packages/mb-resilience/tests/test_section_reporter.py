import json
from pathlib import Path

import pytest

from mb_resilience import NoMonitorError, SectionReporter
from mb_resilience.fault_tolerance.monitor_client import require_monitor, require_sections
from mb_resilience.fault_tolerance.section_timeouts import apply_minimum_timeouts


class FakeClient:
    """Client of a monitor that records its calls."""

    def __init__(self):
        self.reported = []
        self.timeouts = None

    def init_workload_monitoring(self):
        self.reported.append("connected")

    def shutdown_workload_monitoring(self):
        self.reported.append("disconnected")

    def start_section(self, section):
        self.reported.append(f"<{section}")

    def end_section(self, section):
        self.reported.append(f"{section}>")

    def calculate_and_set_section_timeouts(self, selected_sections=None, calc_out_of_section=True):
        self.reported.append((tuple(selected_sections), calc_out_of_section))
        self.timeouts = {"section": dict.fromkeys(selected_sections, 5.0)}
        return True

    def state_dict(self):
        return {"current_timeouts": self.timeouts}

    def load_state_dict(self, state):
        self.reported.append(state)


def make(folder, client, **settings):
    return SectionReporter(client, state_path=folder / "ft_state.json", **settings)


def test_setup_steps_and_saves_are_reported_in_order(tmp_path):
    client = FakeClient()
    with make(tmp_path, client) as sections:
        for _ in range(3):
            with sections.step():
                pass
        with sections.checkpointing():
            pass
        sections.checkpoint_saved()
    assert client.reported == [
        "connected", "<setup", "setup>", "<step", "step>", "<step", "step>", "<checkpointing", "checkpointing>",
        "disconnected",
    ]  # fmt: skip
    assert list(tmp_path.iterdir()) == []  # without calculate_timeouts


def test_each_evaluation_warms_up_again_and_ends_setup(tmp_path):
    client = FakeClient()
    with make(tmp_path, client) as sections:
        evaluation = ("begin", "evaluate", "evaluate")
        for step in (*evaluation, "train", "train", *evaluation, "test", "test", "test"):
            client.reported.append(step)
            if step == "begin":
                sections.on_eval_start(None)
            elif step == "train":
                sections.on_train_step_start(None)
                sections.on_train_step_end(None)
            elif step == "test" and client.reported[-2] != "test":
                sections.on_test_start(None)
            else:
                name = "eval" if step == "evaluate" else "test"
                getattr(sections, f"on_{name}_step_start")(None)
                getattr(sections, f"on_{name}_step_end")(None)
    assert client.reported[2:-1] == [
        "begin", "evaluate", "setup>", "evaluate", "<step", "step>", "train", "train", "<step", "step>",
        "begin", "evaluate", "evaluate", "<step", "step>",  # a validation, followed by
        "test", "test", "test", "<step", "step>",  # a test: its start, and two batches
    ]  # fmt: skip


def test_events_of_checkpoints_are_a_section_and_a_complete_one_sets_timeouts(tmp_path):
    client = FakeClient()
    with make(tmp_path, client, calculate_timeouts=True) as sections:
        sections.on_train_step_start(None)
        sections.on_train_step_end(None)
        sections.on_checkpoint_start(None)
        sections.on_checkpoint_end(None)
        sections.on_checkpoint_save(None)
    calculated = (("checkpointing",), False)
    assert client.reported[3:-2] == ["<checkpointing", "checkpointing>", calculated]


def test_a_save_within_a_step_ends_the_step(tmp_path):
    client = FakeClient()
    with make(tmp_path, client) as sections:
        with sections.step():
            pass
        sections.on_train_step_start(None)
        with sections.checkpointing():
            pass
    assert client.reported[3:-1] == ["<step", "step>", "<checkpointing", "checkpointing>"]


def run(folder, *, loaded, steps, saves, fails=False, **settings):
    """Return the timeout calculations of a run that saves after its steps."""
    client = FakeClient()
    try:
        with make(folder, client, calculate_timeouts=True, **settings) as sections:
            if loaded:
                sections.checkpoint_loaded()
            for _ in range(steps):
                with sections.step():
                    pass
            for _ in range(saves):
                with sections.checkpointing():
                    pass
                sections.checkpoint_saved()
            if fails:
                raise RuntimeError("planted")
    except RuntimeError:
        assert client.reported[-1] == "disconnected"
    return [reported for reported in client.reported if isinstance(reported, tuple)]


ALL = ("setup", "step", "checkpointing")


@pytest.mark.parametrize(
    ("seen", "settings", "calculated"),
    [
        ({"loaded": False, "steps": 2, "saves": 0}, {}, []),
        ({"loaded": False, "steps": 15, "saves": 1}, {}, 2 * [(("checkpointing",), False)]),
        ({"loaded": False, "steps": 16, "saves": 0}, {}, [(("step",), False)]),
        ({"loaded": True, "steps": 2, "saves": 0}, {}, [(("setup",), False)]),
        ({"loaded": True, "steps": 16, "saves": 0}, {}, [(("setup", "step"), False)]),
        ({"loaded": True, "steps": 16, "saves": 1}, {}, [(ALL, False), (ALL, True)]),
        (
            {"loaded": True, "steps": 16, "saves": 1},
            {"asynchronous_saves": True},
            [(("setup", "step"), False), (("setup", "step"), True)],
        ),
        ({"loaded": True, "steps": 16, "saves": 1, "fails": True}, {}, [(ALL, False)]),
    ],
)
def test_time_outs_are_calculated_from_enough_observations(tmp_path, seen, settings, calculated):
    assert run(tmp_path, **seen, **settings) == calculated


def test_time_outs_are_stored_for_the_next_start(tmp_path):
    run(tmp_path, loaded=False, steps=0, saves=1)
    kept = {"current_timeouts": {"section": {"checkpointing": 5.0}}}
    assert json.loads((tmp_path / "ft_state.json").read_text()) == kept
    assert [path.name for path in tmp_path.iterdir()] == ["ft_state.json"]
    client = FakeClient()
    with make(tmp_path, client):
        pass
    assert client.reported == ["connected", kept, "<setup", "setup>", "disconnected"]


def test_only_rank_0_writes(tmp_path):
    run(tmp_path, loaded=False, steps=0, saves=1, rank=1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", ['{"current_', "[1]"])
def test_damaged_file_is_reported_and_ignored(tmp_path, content):
    logged, client = [], FakeClient()
    (tmp_path / "ft_state.json").write_text(content)
    with make(tmp_path, client, log=logged.append):
        pass
    assert client.reported == ["connected", "<setup", "setup>", "disconnected"]
    assert ["ft_state.json" in text for text in logged] == [True]


class ParsingClient(FakeClient):
    """Client that parses the state, as NVRx's client does."""

    def load_state_dict(self, state):
        super().load_state_dict(apply_minimum_timeouts(state))


@pytest.mark.parametrize(
    "timeouts",
    [
        3,
        "12",
        {"section": 3},
        {"section": {"calculated_sections": ["step"]}},
        {"section": {"section": [1]}},
        {"section": {"section": {"step": "1"}, "calculated_sections": ["step"]}},
        {"section": {"section": {}, "is_out_of_section_calculated": True}},
    ],
)
def test_time_outs_of_another_format_are_reported_and_the_run_continues(tmp_path, timeouts):
    logged, client = [], ParsingClient()
    (tmp_path / "ft_state.json").write_text(json.dumps({"current_timeouts": timeouts}))
    with make(tmp_path, client, log=logged.append):
        pass
    assert client.reported == ["connected", "<setup", "setup>", "disconnected"]
    assert ["ft_state.json: contains no usable timeouts (" in text for text in logged] == [True]


def full_disk(path, text, **encoding):
    raise OSError(28, "No space left on device")


def test_file_that_cannot_be_written_does_not_end_the_run_and_the_old_one_remains(tmp_path, monkeypatch):
    run(tmp_path, loaded=False, steps=0, saves=1)
    before = (tmp_path / "ft_state.json").read_text()
    monkeypatch.setattr(Path, "write_text", full_disk)
    logged = []
    assert run(tmp_path, loaded=True, steps=0, saves=1, log=logged.append)
    assert ["calculated timeouts are not stored" in text for text in logged] == [True, True]
    assert (tmp_path / "ft_state.json").read_text() == before


def test_calculated_time_outs_have_a_minimum():
    def state(step, outside):
        sections = {"setup": 2.0, "step": step, "checkpointing": 90.0, "other": None}
        kept = {
            "section": sections,
            "out_of_section": outside,
            "calculated_sections": ["checkpointing", "step"],
        }
        return {"current_timeouts": {"section": {**kept, "is_out_of_section_calculated": outside != 5.0}}}

    assert apply_minimum_timeouts(state(0.5, 5.0)) == state(30.0, 5.0)
    assert apply_minimum_timeouts(state(31.0, 0.3)) == state(31.0, 30.0)
    assert apply_minimum_timeouts(state(0.5, 0.3), min_seconds=1.0) == state(1.0, 1.0)
    assert [apply_minimum_timeouts(nothing) for nothing in ({}, {"current_timeouts": {}})] == [
        {},
        {"current_timeouts": {}},
    ]


def test_missing_monitor_is_rejected():
    require_monitor({"FT_RANK_MONITOR_IPC_SOCKET": "/tmp/monitor"})
    with pytest.raises(NoMonitorError, match="Start the job with NVRx's ft_launcher"):
        require_monitor({"RANK": "0", "TORCHELASTIC_RESTART_COUNT": "0"})


def test_monitor_without_a_section_is_rejected():
    require_sections(["checkpointing", "setup", "step", "custom"])
    with pytest.raises(
        NoMonitorError, match="--ft-param-rank_section_timeouts=setup:600,step:180,checkpointing:420"
    ):
        require_sections([])
