import fcntl
import os
import pickle
import pty
import signal
import subprocess
import sys
import termios
import threading

import pytest

from mb_resilience import AgreedStop, IgnoreSignals, SignalWatcher, StopSetupError
from mb_resilience.stops.signals import announce_stop, watch_run_signals


def handlers():
    return signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)


def test_first_signal_is_recorded_and_the_program_continues():
    with SignalWatcher() as watcher:
        assert watcher.received is None
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        assert watcher.received == "SIGTERM"


def test_second_interrupt_raises_immediately():
    with SignalWatcher(debounce_seconds=0) as watcher:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert watcher.received == "SIGINT"


@pytest.mark.parametrize(("environment", "seconds"), [({"RANK": "1"}, 1.0), ({}, 0.2)])
def test_a_launcher_may_forward_a_key_press_within_a_second(monkeypatch, environment, seconds):
    monkeypatch.delenv("RANK", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    times = iter([10.0, 10.0 + seconds - 0.05, 10.0 + seconds + 0.05])
    with SignalWatcher(clock=lambda: next(times)):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_watcher_that_was_never_entered_is_an_error_and_not_a_run_without_signals():
    stop = AgreedStop(SignalWatcher())
    with pytest.raises(StopSetupError, match="was never entered, so that a signal ends the process"):
        stop(1)


def test_a_signal_may_be_given_by_its_name():
    with SignalWatcher(["SIGUSR1"]) as watcher:
        signal.raise_signal(signal.SIGUSR1)
    assert watcher.received == "SIGUSR1"
    for unknown in ("SIGNONE", 1000):
        with pytest.raises(StopSetupError, match=f"SignalWatcher: {unknown!r} is not a signal"):
            SignalWatcher([unknown])


FORKS = """
import contextlib, multiprocessing, signal, sys, time
from mb_resilience import SignalWatcher
from mb_resilience.restarts.signals import HeldSignals

fork = multiprocessing.get_context("fork")
stack = contextlib.ExitStack()
for stop in {"watcher": [SignalWatcher], "nested": [SignalWatcher] * 2, "held": [HeldSignals]}[sys.argv[1]]:
    stack.enter_context(stop([signal.SIGTERM]))
with stack:
    child = fork.Process(target=time.sleep, args=(60,))
    child.start()
    time.sleep(0.2)
    child.terminate()
    child.join(20)
    print(child.exitcode)
    with fork.Pool(2) as pool:  # its end terminates its processes
        print(pool.map(abs, [-1]))
    left = fork.Process(target=time.sleep, args=(60,), daemon=True)
    left.start()
"""
"""Python terminates a daemon that is left at the end, and waits for it."""


@pytest.mark.parametrize("kind", ["watcher", "nested", "held"])
def test_processes_that_are_forked_within_a_watcher_can_be_terminated(kind):
    ended = subprocess.run([sys.executable, "-c", FORKS, kind], capture_output=True, text=True, timeout=50)
    assert (ended.returncode, ended.stdout) == (0, f"{-signal.SIGTERM}\n[1]\n"), ended.stderr


def test_interrupts_of_one_key_press_count_once():
    times = iter([10.0, 10.2, 12.0])
    with SignalWatcher(debounce_seconds=1.0, clock=lambda: next(times)):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_key_that_is_pressed_repeatedly_raises():
    times = iter([10.0, 10.4, 10.8, 11.2])
    with SignalWatcher(debounce_seconds=1.0, clock=lambda: next(times)):
        for _ in range(3):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_second_sigterm_changes_nothing():
    with SignalWatcher() as watcher:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
    assert watcher.received == "SIGTERM"


def test_previous_handlers_are_restored_also_after_an_error():
    before = handlers()
    with pytest.raises(ZeroDivisionError), SignalWatcher() as watcher:  # noqa: PT012 (the error follows an assertion)
        assert watcher.installed
        assert handlers() != before
        _ = 1 / 0
    assert handlers() == before
    assert not watcher.installed


def test_watchers_nest():
    with SignalWatcher() as outer:
        with SignalWatcher() as inner:
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
    assert (outer.received, inner.received) == ("SIGINT", "SIGTERM")


def test_another_thread_installs_nothing_and_warns():
    before = handlers()
    seen = []

    def enter():
        with pytest.warns(RuntimeWarning, match="outside of the main thread"), SignalWatcher() as watcher:
            seen.append((watcher.installed, handlers() == before))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [(False, True)]


def test_signal_that_cannot_be_caught_restores_the_handlers():
    before = handlers()
    with pytest.raises(OSError), SignalWatcher((signal.SIGTERM, signal.SIGKILL)):
        pass
    assert handlers() == before


def test_other_signals_can_be_watched():
    with SignalWatcher((signal.SIGUSR1,)) as watcher:
        signal.raise_signal(signal.SIGUSR1)
    assert watcher.received == "SIGUSR1"


def test_first_signal_is_announced_immediately_and_once():
    reported = []
    with SignalWatcher((signal.SIGUSR1,), announce=reported.append):
        signal.raise_signal(signal.SIGUSR1)
        assert reported == ["SIGUSR1"]
        signal.raise_signal(signal.SIGUSR1)
    assert reported == ["SIGUSR1"]


def test_worker_ignores_the_signals_of_its_trainer_only():
    shield = IgnoreSignals((signal.SIGTERM, signal.SIGUSR1))
    code = (
        "import pickle, signal, sys; pickle.loads(bytes.fromhex(sys.argv[1]))(0);"
        "[signal.raise_signal(getattr(signal, name)) for name in ('SIGTERM', 'SIGUSR1', 'SIGUSR2')]"
    )
    process = subprocess.run([sys.executable, "-c", code, pickle.dumps(shield).hex()], check=False)
    assert process.returncode == -signal.SIGUSR2


def test_the_exit_signal_is_ignored_after_a_run_with_which_the_process_ends():
    before = signal.getsignal(signal.SIGUSR1)
    try:
        with watch_run_signals(signal.SIGUSR1, launched=False) as watcher:
            signal.raise_signal(signal.SIGUSR1)
        assert watcher.received == "SIGUSR1"
        assert signal.getsignal(signal.SIGUSR1) == before
        with watch_run_signals(signal.SIGUSR1, launched=True, process_ends=True):
            pass
        signal.raise_signal(signal.SIGUSR1)
        assert signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_watcher_that_cannot_install_handlers_ignores_no_signal_afterwards():
    before = signal.getsignal(signal.SIGUSR1)

    def run():
        with (
            pytest.warns(RuntimeWarning, match="outside of the main thread"),
            watch_run_signals(signal.SIGUSR1, launched=False, process_ends=True) as watcher,
        ):
            assert not watcher.installed

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGUSR1) == before


def test_a_stop_is_announced_immediately(capfd):
    with watch_run_signals(signal.SIGUSR1, launched=False, announce=announce_stop):
        signal.raise_signal(signal.SIGUSR1)
        text = "\nSIGUSR1: stopping after this step (Ctrl-C again: at once)\n"
        assert capfd.readouterr().out == text


ON_A_TERMINAL = """
import pathlib, signal, sys, time
from mb_resilience.stops.signals import announce_stop, watch_run_signals
with watch_run_signals(signal.SIGTERM, launched=False, announce=announce_stop) as watcher:
    print("step 1", flush=True)
    while watcher.received is None:
        time.sleep(0.01)
    print("saving", flush=True)
    print("a warning", file=sys.stderr, flush=True)
pathlib.Path(sys.argv[1]).write_text(watcher.received)
"""


def test_a_program_whose_terminal_ends_continues_to_its_save(tmp_path):
    terminal, inside = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", ON_A_TERMINAL, tmp_path / "saved"],
        stdin=inside,
        stdout=inside,
        stderr=inside,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(inside)
    assert b"step 1" in os.read(terminal, 1 << 16)
    os.close(terminal)
    assert process.wait(timeout=30) == 0
    assert (tmp_path / "saved").read_text() == "SIGHUP"


def test_nohup_is_respected():
    code = (
        "import os, signal; from mb_resilience.stops.signals import watch_run_signals\n"
        "with watch_run_signals(signal.SIGTERM, launched=False) as watcher:\n"
        "    os.kill(os.getpid(), signal.SIGHUP); print(watcher.received)"
    )
    ended = subprocess.run(["nohup", sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "None\n"


def test_a_signal_that_is_named_twice_has_its_previous_handler_afterwards():
    before = signal.getsignal(signal.SIGINT)
    with watch_run_signals(signal.SIGINT, launched=False):
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before
