from types import SimpleNamespace

from mb_resilience import AgreedStop, CombinedWatcher, DeadlineWatcher


def test_run_stops_after_the_first_step_beyond_the_deadline():
    started = 1000.0
    clock, timer = iter([started + 10]).__next__, iter([7.0, 7.0, 56.9, 57.0]).__next__
    stop = AgreedStop(DeadlineWatcher(1, start_time=started, what="max_minutes=1", clock=clock, timer=timer))
    assert [stop(step) for step in (1, 2, 3)] == [None, None, "max_minutes=1 has passed on rank 0"]


def test_combined_watcher_returns_the_first_request():
    none, term = SimpleNamespace(received=None), SimpleNamespace(received="SIGTERM")
    assert CombinedWatcher(none, none).received is None
    assert CombinedWatcher(none, term, DeadlineWatcher(0, start_time=0.0)).received == "SIGTERM"
