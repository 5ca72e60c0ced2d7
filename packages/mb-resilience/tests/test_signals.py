import pickle
import signal
import subprocess
import sys
import threading

import pytest

from mb_resilience import IgnoreSignals, SignalWatcher
from mb_resilience.signals import watch_run_signals


def handlers():
    return signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)


def test_first_signal_is_recorded_and_the_program_continues():
    with SignalWatcher() as watcher:
        assert watcher.received is None
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        assert watcher.received == "SIGTERM"


def test_second_interrupt_raises_immediately():
    with SignalWatcher() as watcher:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert watcher.received == "SIGINT"


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


def test_another_thread_installs_nothing():
    before = handlers()
    seen = []

    def enter():
        with SignalWatcher() as watcher:
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
        with watch_run_signals(signal.SIGUSR1, launched=False, process_ends=True) as watcher:
            assert not watcher.installed

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGUSR1) == before


def test_a_stop_is_announced_immediately(capfd):
    with watch_run_signals(signal.SIGUSR1, launched=False, announce=True):
        signal.raise_signal(signal.SIGUSR1)
        text = "\nSIGUSR1: stopping after this step (Ctrl-C again: at once)\n"
        assert capfd.readouterr().out == text
