"""Order of the events of a run, losses bit for bit, and exit codes of the commands, as they were recorded."""

import os
import signal

import pytest
from recorded import differences
from runs import events, losses, mb_here, train_here

from mb_loop import Callback

EVENTS = [name for name in dir(Callback) if name.startswith("on_")]
SHORT = [
    "train.train_iters=4",
    "validation.eval_interval=2",
    "validation.eval_iters=1",
    "logger.log_interval=1",
]
SHORT += ["checkpoint.save_interval=2"]


class EventLog(Callback):
    """Log of the events of the loop, with the step at which each came; `stop_at` sends SIGTERM after that step."""

    def __init__(self, *, stop_at=None):
        self.seen, self.stop_at = [], stop_at


def logged(name):
    def method(self, context):
        step = context.state.train_state.step
        self.seen.append(f"{name} {step}")
        if name == "on_train_step_end" and step == self.stop_at:
            os.kill(os.getpid(), signal.SIGTERM)

    return method


for name in EVENTS:
    setattr(EventLog, name, logged(name))


@pytest.fixture(scope="module")
def runs(overrides, tmp_path_factory):
    """Run once to the end and once to a stop by SIGTERM after step 3, with the order of their events."""
    found = {}
    for kind, stop_at in (("whole", None), ("stopped", 3)):
        out, log = tmp_path_factory.mktemp("golden") / kind, EventLog(stop_at=stop_at)
        outcome = train_here([*overrides, *SHORT], out, callbacks=(log,))
        found[kind] = out, outcome, log.seen
    return found


def test_events_come_in_the_same_order(runs):
    found = {
        kind: {
            "callbacks": seen,
            "events.jsonl": [f"{event} {step}" for event, step in events(out)],
            "reason": outcome.reason,
            "exit code": outcome.exit_code,
        }
        for kind, (out, outcome, seen) in runs.items()
    }
    assert differences("events", found) == {}


def test_a_stopped_run_has_the_losses_of_the_whole_one(runs):
    whole, stopped = losses(runs["whole"][0]), losses(runs["stopped"][0])
    assert stopped == {step: whole[step] for step in (1, 2, 3)}


COMMANDS = {
    "recipes": ["recipes"],
    "version": ["--version"],
    "help": ["--help"],
    "unknown command": ["pretrian"],
    "check": ["check", "gpt_tiny"],
    "check, a violated rule": ["check", "gpt_tiny", "model.hidden_size=65"],
    "check, an unknown recipe": ["check", "gpt_tinny"],
    "check, an unknown field": ["check", "gpt_tiny", "train.train_itres=3"],
    "check, a wrong type": ["check", "gpt_tiny", "train.train_iters=many"],
    "check, a missing file": ["check", "no_such_file.yaml"],
    "plan": ["plan", "gpt_tiny"],
    "plan, a violated rule": ["plan", "gpt_tiny", "model.hidden_size=65"],
    "sweep": ["sweep", "gpt_tiny", "model.num_layers=1,2"],
    "sweep without a list": ["sweep", "gpt_tiny"],
    "explain": ["explain", "V137"],
    "explain, an unknown rule": ["explain", "V999"],
    "config show": ["config", "show", "gpt_tiny"],
    "config show, an unknown field": ["config", "show", "gpt_tiny", "modle.num_layers=1"],
    "pretrain, a violated rule": ["pretrain", "gpt_tiny", "model.hidden_size=65"],
    "pretrain, an unknown field": ["pretrain", "gpt_tiny", "train.train_itres=3"],
    "finetune without weights": ["finetune", "gpt_tiny"],
    "sample, no run": ["sample", "no/such/run"],
    "report, no run": ["report", "no/such/run"],
    "watch, no run": ["watch", "no/such/run"],
    "ckpt ls, no run": ["ckpt", "ls", "no/such/run"],
    "ckpt verify, no run": ["ckpt", "verify", "no/such/run"],
    "ckpt show, no run": ["ckpt", "show", "no/such/run"],
    "data verify, no data": ["data", "verify", "no/such/data"],
    "data show, no data": ["data", "show", "no/such/data"],
    "import-hf, no folder": ["import-hf", "no/such/folder", "--out", "out"],
    "export-hf, no run": ["export-hf", "no/such/run", "--out", "out"],
    "verify-resume, a cut behind the end": ["verify-resume", "gpt_tiny", "--steps", "3", "--cut", "5"],
}


def test_commands_end_with_the_same_exit_codes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = {name: mb_here(*arguments).returncode for name, arguments in COMMANDS.items()}
    assert differences("exit_codes", found) == {}
    assert {*found.values()} <= {0, 1, 2}


def test_commands_that_read_a_run_end_with_the_same_exit_codes(runs):
    out = str(runs["whole"][0])
    commands = {
        "report": ["report", out],
        "ckpt ls": ["ckpt", "ls", out],
        "ckpt show": ["ckpt", "show", out],
        "ckpt verify": ["ckpt", "verify", out],
        "ckpt prune": ["ckpt", "prune", out, "--keep", "1", "--dry-run"],
        "sample": ["sample", out, "--tokens", "1"],
        "check": ["check", f"{out}/run_config.yaml"],
    }
    found = {name: mb_here(*arguments).returncode for name, arguments in commands.items()}
    assert differences("exit_codes_of_a_run", found) == {}
