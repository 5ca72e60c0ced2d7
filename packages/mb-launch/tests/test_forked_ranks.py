"""A rank that is forked from the launcher starts as a fresh interpreter does."""

import atexit
import json
import multiprocessing
import os
import signal
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from mb_launch import ForkedProgram, can_fork_ranks  # noqa: E402
from mb_launch.ranks.forked_ranks import run_forked_rank  # noqa: E402


def start_and_join(program: ForkedProgram) -> int | None:
    process = multiprocessing.get_context("fork").Process(target=run_forked_rank, args=[program])
    process.start()
    process.join()
    return process.exitcode


@pytest.fixture
def handled_signals():
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    found = {number: signal.signal(number, lambda *_: None) for number in numbers}
    yield numbers
    for number, handler in found.items():
        signal.signal(number, handler)


def test_a_forked_rank_has_its_own_arguments_signals_and_exit_functions(handled_signals, tmp_path):
    def main() -> None:
        atexit.register((tmp_path / "registered").touch)
        handlers = [signal.getsignal(number) for number in handled_signals]
        fresh = handlers == [signal.SIG_DFL, signal.default_int_handler, signal.SIG_DFL]
        (tmp_path / "seen").write_text(json.dumps([sys.argv, fresh]))
        sys.exit(17)

    atexit.register((tmp_path / "inherited").touch)
    program = ForkedProgram(argv=("mb", "pretrain", "gpt_tiny"), main=main, preload=main)
    assert start_and_join(program) == 17
    assert json.loads((tmp_path / "seen").read_text()) == [["mb", "pretrain", "gpt_tiny"], True]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["registered", "seen"]


def test_ranks_are_not_forked_where_there_is_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert not can_fork_ranks()


def test_ranks_with_another_number_of_threads_are_not_forked(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))
    assert can_fork_ranks()
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads() + 1))
    assert not can_fork_ranks()


LAUNCH = """
import os, signal, sys, time
from mb_launch import ForkedProgram, launch_local
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
def preload():
    os.kill(os.getpid(), getattr(signal, sys.argv[1]))
    time.sleep(0.1)
program = ForkedProgram(argv=("x",), main=lambda: None, preload=preload)
print(launch_local(["-c", "pass"], processes=1, fork=program).exit_code)
"""


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", -signal.SIGTERM), ("SIGINT", -signal.SIGINT)])
def test_a_signal_during_the_imports_ends_the_launch(name, code):
    """There is no rank yet to which it could be forwarded."""
    done = subprocess.run(
        [sys.executable, "-c", LAUNCH, name], capture_output=True, text=True, env=one_thread(), check=False
    )
    assert (done.returncode, done.stdout) == (code, "")
    assert ("KeyboardInterrupt" in done.stderr) == (name == "SIGINT")


def one_thread():
    """Return an environment with which ranks can be forked."""
    return {**os.environ, "OMP_NUM_THREADS": "1"}
