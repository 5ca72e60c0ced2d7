"""Stops by a user: Ctrl-C or SIGTERM to the process, and a resume with the same command."""

import fcntl
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time

import pytest
from runs import events, losses, read_until, start_mb, train_here, wait_for_steps

from mb_loop import Callback


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_prints_how_to_resume(overrides, tmp_path, number):
    out = tmp_path / "run"
    words = ["pretrain", *overrides, "train.train_iters=100000", "logger.log_interval=1"]
    words += ["validation.eval_interval=null", "validation.eval_iters=0", "--out", str(out)]
    process = start_mb(*words)
    wait_for_steps(out, 5)
    process.send_signal(number)
    printed = read_until(process, "resume with")
    if number == signal.SIGTERM:
        process.send_signal(number)  # all is saved: one that comes late changes nothing
    rest, complaints = process.communicate(timeout=240)
    printed += rest
    assert (process.returncode, complaints) == (0, "")
    stopped = max(losses(out))
    assert f"{number.name} on rank 0" in printed
    assert f"successfully saved checkpoint from iteration {stopped:7d}" in printed
    assert re.search(r"resume with +(uv run )?mb pretrain", printed)
    assert events(out)[-2:] == [("save", stopped), ("stop", stopped)]


class SignalInEvaluation(Callback):
    def on_eval_step_start(self, context):
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_in_the_evaluation_after_training_names_what_makes_up_for_it(overrides, tmp_path, capsys):
    """The run is complete, so the same command would not evaluate it."""
    run = tmp_path / "run"
    words = [*overrides, "train.train_iters=2", "scheduler.lr_warmup_iters=1"]
    assert train_here(words, run, callbacks=(SignalInEvaluation(),)).reason == "finished"
    assert "the same command with validation.skip_train=true prints the validation and test losses" in (
        capsys.readouterr().out
    )


@pytest.mark.slow
def test_a_custom_signal_ends_an_evaluation(overrides, tmp_path):
    """An evaluation of minutes: a scheduler would not wait for it."""
    out = tmp_path / "run"
    words = ["pretrain", *overrides, "train.train_iters=8", "logger.log_interval=1"]
    words += ["validation.eval_interval=2", "validation.eval_iters=20000", "train.exit_signal=SIGUSR1"]
    process = start_mb(*words, "--out", str(out))
    wait_for_steps(out, 1)
    process.send_signal(signal.SIGUSR1)
    printed, complaints = process.communicate(timeout=240)
    assert (process.returncode, complaints) == (0, "")
    assert re.search(r"stopped after step [1-3]: SIGUSR1 on rank 0", printed)
    assert "validation loss" not in printed
    assert events(out)[-2][0] == "save"


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [[], ["--nproc", "2"]], ids=["one rank", "two ranks"])
def test_a_run_whose_terminal_is_closed_saves(overrides, tmp_path, launcher):
    out = tmp_path / "run"
    words = ["pretrain", *overrides, "train.train_iters=100000", "logger.log_interval=1", *launcher]
    words += ["validation.eval_interval=null", "validation.eval_iters=0", "checkpoint.save_interval=null"]
    terminal, inside = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "mb_trainer", *words, f"--out={out}"],
        stdin=inside,
        stdout=inside,
        stderr=inside,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(inside)
    try:
        deadline = time.monotonic() + 240
        while not (out / "metrics.jsonl").exists() or len(losses(out)) < 5:
            assert time.monotonic() < deadline
            if select.select([terminal], [], [], 0.02)[0]:
                os.read(terminal, 1 << 16)  # a terminal that is not read blocks the run
        os.close(terminal)
        assert process.wait(timeout=240) == 0
    finally:
        process.kill()
    *_, (saved, step), (stopped, last) = events(out)
    assert (saved, stopped, step) == ("save", "stop", last)


class Terminal:
    """A terminal with a run in its foreground."""

    def __init__(self, words):
        self.end, inside = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mb_trainer", *words],
            stdin=inside,
            stdout=inside,
            stderr=inside,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(inside)
        self.printed = ""

    def read_until(self, reached, *, seconds=240):
        """Read what the run prints, which it would else wait for, until a condition holds."""
        deadline = time.monotonic() + seconds
        while not reached():
            assert time.monotonic() < deadline, self.printed
            if select.select([self.end], [], [], 0.02)[0]:
                try:
                    self.printed += os.read(self.end, 1 << 16).decode(errors="replace")
                except OSError:  # all processes have closed it
                    time.sleep(0.02)

    def press_ctrl_c(self):
        """Let the terminal send SIGINT to each process in its foreground, as the key does."""
        os.write(self.end, b"\x03")


@pytest.fixture
def terminal():
    opened = []

    def run(words):
        opened.append(Terminal(words))
        return opened[-1]

    yield run
    for each in opened:
        each.process.kill()


def endless(overrides, out):
    words = ["pretrain", *overrides, "train.train_iters=100000", "logger.log_interval=1"]
    words += ["validation.eval_interval=null", "validation.eval_iters=0", "checkpoint.save_interval=null"]
    return [*words, f"--out={out}"]


RANKS = pytest.mark.parametrize("ranks", [[], ["--nproc", "2"]], ids=["one rank", "two ranks"])


@pytest.mark.slow
@RANKS
def test_ctrl_c_on_a_terminal_saves(overrides, terminal, tmp_path, ranks):
    out = tmp_path / "run"
    opened = terminal([*endless(overrides, out), *ranks])
    opened.read_until(lambda: (out / "metrics.jsonl").exists() and len(losses(out)) >= 5)
    opened.press_ctrl_c()
    opened.read_until(lambda: opened.process.poll() is not None)
    assert opened.process.returncode == 0
    assert [event for event, _ in events(out)[-2:]] == ["save", "stop"]


@pytest.mark.slow
@RANKS
def test_a_second_ctrl_c_within_a_second_ends_at_once(overrides, terminal, tmp_path, ranks):
    """A step takes many seconds here: a press that counts for nothing lets it end, and the run save."""
    out = tmp_path / "run"
    opened = terminal(
        [*endless(overrides, out), "train.global_batch_size=6000", "train.train_iters=50", *ranks]
    )
    opened.read_until(lambda: (out / "metrics.jsonl").exists())
    opened.press_ctrl_c()
    opened.read_until(lambda: "stopping after this step" in opened.printed)
    time.sleep(0.5)
    opened.press_ctrl_c()
    opened.read_until(lambda: opened.process.poll() is not None, seconds=60)
    assert opened.process.returncode == 130
    assert "stopped after step" not in opened.printed


class BeganAnHourBefore(Callback):
    """Counts time before the trainer began, such as that of a scheduler."""

    def on_data_init_start(self, context):
        context.state.start_time -= 3600


def test_a_run_whose_time_is_up_saves_and_leaves(overrides, tmp_path):
    words = [*overrides, "train.exit_duration_in_mins=60", "train.train_iters=100000"]
    outcome = train_here(words, tmp_path / "run", callbacks=(BeganAnHourBefore(),))
    assert (outcome.reason, outcome.step, outcome.saved) == ("duration", 1, True)
    assert outcome.message == "stopped after step 1: train.exit_duration_in_mins=60 has passed on rank 0"
