import socket
import threading
import urllib.error
import urllib.request
from types import SimpleNamespace

import pytest

from mb_resilience import (
    RankSpeed,
    SpeedReport,
    SpeedReporter,
    StragglerSwitch,
    StragglerTimer,
    SwitchPortError,
)


class Clock:
    """Clock that only advances by `work`."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def work(self, seconds):
        self.now += seconds


class ThreadAllGather:
    """All-gather between threads, one per rank."""

    def __init__(self, ranks):
        self._rows = [None] * ranks
        self._all = threading.Barrier(ranks, timeout=60)

    def of(self, rank):
        def all_gather(row):
            self._rows[rank] = row
            self._all.wait()
            rows = list(self._rows)
            self._all.wait()
            return rows

        return all_gather


def on_ranks(count, function):
    """Run function(rank, exchange) on threads; return what each returned."""
    table, results = ThreadAllGather(count), [None] * count

    def one(rank):
        results[rank] = function(rank, table.of(rank))

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_all_ranks_report_the_slow_rank():
    def run(rank, all_gather):
        clock, logged = Clock(), []
        timer = StragglerTimer(rank=rank, all_gather=all_gather, clock=clock, write=logged.append)
        forward = timer.wrap_function(lambda: clock.work(0.5 if rank == 1 else 0.125))
        for _ in range(4):
            forward()
            clock.work(16)  # a collective, in which ranks wait for each other
        return timer.report(total_flops=6e12, log_interval=2), logged

    reports = on_ranks(2, run)
    speeds = [
        RankSpeed(rank=0, work_seconds=0.25, teraflops=2.0),
        RankSpeed(rank=1, work_seconds=1.0, teraflops=0.5),
    ]
    assert [(report.slowest.rank, report.ranks) for report, _ in reports] == [(1, speeds)] * 2
    line = "work 250.00 (rank 0) to 1000.00 ms (rank 1) | speed 0.50 (rank 1) to 2.00 TFLOP/s (rank 0)"
    assert [logged for _, logged in reports] == [[f"speed of ranks, min to max: {line}"]] * 2


def test_data_is_timed_separately_from_work():
    clock = Clock()

    def slow_data():
        while True:
            clock.work(3.0)
            yield "batch"

    timer = StragglerTimer(clock=clock)
    batches = timer.wrap_iterator(slow_data())
    with timer:
        assert next(batches) == "batch"
        clock.work(1.0)
    assert timer.report().ranks == [RankSpeed(rank=0, work_seconds=1.0, data_seconds=3.0)]


def test_failed_sections_pauses_and_a_disabled_timer_are_not_counted():
    clock = Clock()
    timer = StragglerTimer(clock=clock, enabled=False)
    with timer:
        clock.work(1.0)
    assert timer.report() is None

    timer = StragglerTimer(clock=clock)
    with pytest.raises(KeyError), timer:
        {}["a section that fails"]
    timer.pause()
    batches = timer.wrap_iterator(iter(["batch"]))
    with timer:
        next(batches)
        clock.work(1.0)
    timer.resume()
    assert timer.report(total_flops=1e12, log_interval=5) is None  # and no division by zero


def test_a_clock_too_coarse_to_see_the_work_gives_no_speed():
    timer = StragglerTimer(clock=Clock())
    with timer:
        pass
    assert timer.report(total_flops=1e12).ranks == [RankSpeed(rank=0, work_seconds=0.0)]


def test_values_of_some_ranks_are_compared_among_them():
    def run(rank, all_gather):
        clock = Clock()
        device = {0: {"temperature": 40.0, "power": 300.0}, 1: {"temperature": 71.0}, 2: {}}[rank]
        timer = StragglerTimer(
            rank=rank,
            minmax_count=2,
            all_gather=all_gather,
            clock=clock,
            device=lambda: device,
            enabled=rank != 2,
        )
        with timer:
            clock.work(1 + rank)
        return timer.report()

    report, *others = on_ranks(3, run)
    assert others == [report, report]
    assert report.lines() == [
        "speed of ranks, min to max: work 1000.00 (rank 0) to 2000.00 ms (rank 1)"
        " | temperature 40.00 (rank 0) to 71.00 °C (rank 1) | power 300.00 (rank 0) to 300.00 W (rank 0)"
    ]


def test_report_lists_several_ranks_and_has_metrics():
    ranks = [
        RankSpeed(rank=rank, work_seconds=work, data_seconds=0.25, teraflops=1 / work)
        for rank, work in enumerate([2.0, 4.0, 1.0, 8.0])
    ]
    report = SpeedReport(ranks=ranks, minmax_count=2)
    assert report.lines()[1] == (
        "slowest 2: rank 3 (8000.00 ms), rank 1 (4000.00 ms) | fastest 2: rank 2 (1000.00 ms), rank 0 (2000.00 ms)"
    )
    assert report.metrics() == {
        "straggler/slowest-rank": 3.0,
        "straggler/work-ms-min": 1000.0,
        "straggler/work-ms-max": 8000.0,
        "straggler/data-ms-max": 250.0,
        "straggler/tflops-min": 0.125,
        "straggler/tflops-max": 1.0,
    }


def send_request(switch, path="/", *, token=None):
    headers = {"Authorization": f"Bearer {token or switch.token}"}
    request = urllib.request.Request(f"http://127.0.0.1:{switch.port}{path}", headers=headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read().decode()


def test_switch_of_rank_0_applies_to_all_ranks_at_the_next_report():
    def run(rank, all_gather):
        clock, logged = Clock(), []

        def interval():
            with timer:
                clock.work(1.0)
            return timer.report() is not None

        if rank == 1:
            timer = StragglerTimer(rank=1, enabled=False, all_gather=all_gather, clock=clock)
            return [interval() for _ in range(4)], logged
        with StragglerSwitch(port=0, on=False) as switch:
            timer = StragglerTimer(
                enabled=False, all_gather=all_gather, clock=clock, switch=switch, write=logged.append
            )
            seen = [interval()]
            assert send_request(switch) == "The straggler timer will be on from the next log interval.\n"
            seen += [interval(), interval()]
            assert "will be off" in send_request(switch)
            return [*seen, interval()], [line for line in logged if "switched" in line]

    lines = [f"speed of ranks: measuring is switched {state}" for state in ("on", "off")]
    assert on_ranks(2, run) == [([False, False, True, True], lines), ([False, False, True, True], [])]


def test_switch_ignores_other_paths():
    with StragglerSwitch(port=0, on=True) as switch:
        with pytest.raises(urllib.error.HTTPError, match="404"):
            send_request(switch, "/favicon.ico")
        assert switch.requested


def test_a_request_without_the_token_changes_nothing():
    with StragglerSwitch(port=0, on=True) as switch:
        with pytest.raises(urllib.error.HTTPError, match="401"):
            send_request(switch, token="guessed")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"http://127.0.0.1:{switch.port}/", timeout=60)
        assert switch.requested


def test_an_unknown_client_can_do_nothing():
    requests = [
        b"\x00" * 5000,
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nAuthorization: Bearer \r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nswitch it",
        b"GET /../straggler_token HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 500 + b"\r\n",
    ]
    with StragglerSwitch(port=0, on=True) as switch:
        with pytest.raises(ConnectionRefusedError):  # another address of this machine
            socket.create_connection(("127.0.0.2", switch.port), timeout=5)
        for request in requests:
            with socket.create_connection(("127.0.0.1", switch.port), timeout=30) as client:
                client.sendall(request)
                client.shutdown(socket.SHUT_WR)
                answer = client.recv(100_000)
            assert b" 200 " not in answer.split(b"\n")[0]
            assert switch.token.encode() not in answer
        assert switch.requested is True
        assert "will be off" in send_request(switch)


def test_token_file_is_private_and_removed_on_close(tmp_path):
    file, elsewhere = tmp_path / "token", tmp_path / "elsewhere"
    elsewhere.write_text("kept")
    file.symlink_to(elsewhere)
    with StragglerSwitch(port=0, on=True, token_file=file) as switch:
        assert (file.read_text(), file.stat().st_mode & 0o777) == (switch.token, 0o600)
    assert (file.exists(), elsewhere.read_text()) == (False, "kept")


def test_default_address_is_the_loopback_interface():
    with StragglerSwitch(port=0, on=True) as switch, StragglerSwitch(port=0, on=True, host="") as open_switch:
        assert switch._server.server_address[0] == "127.0.0.1"
        assert open_switch._server.server_address[0] == "0.0.0.0"


def test_port_and_timer_work_after_a_restart_in_the_same_process():
    with StragglerSwitch(port=0, on=True) as switch:
        port = switch.port
        send_request(switch)
    for _ in range(2):
        with StragglerSwitch(port=port, on=True) as switch:
            clock = Clock()
            timer = StragglerTimer(switch=switch, clock=clock)
            with timer:
                clock.work(2.0)
            assert timer.report().slowest.work_seconds == 2.0
            assert "will be off" in send_request(switch)


def test_unavailable_port_is_reported():
    with (
        StragglerSwitch(port=0, on=True) as first,
        pytest.raises(SwitchPortError, match=f"cannot listen on 127.0.0.1, port {first.port}"),
    ):
        StragglerSwitch(port=first.port, on=True)
    with pytest.raises(SwitchPortError, match="port 70000"):
        StragglerSwitch(port=70000, on=True)


def test_backward_passes_are_timed_by_the_timers_of_a_schedule():
    def run(rank, all_gather):
        clock, logged, sections = Clock(), [], []
        places = ["alpha, GPU 0", "beta, GPU 3"]
        timer = StragglerTimer(
            rank=rank, all_gather=all_gather, clock=clock, write=logged.append, locations=places
        )
        section = SimpleNamespace(
            start=lambda **options: sections.append(options), stop=lambda: sections.append("stop")
        )
        config = SimpleNamespace(timers=lambda name, log_level=None: section)
        reporter = SpeedReporter(timer, log_interval=1)
        context = SimpleNamespace(
            model=[SimpleNamespace(module=SimpleNamespace(config=config))],
            state=SimpleNamespace(train_state=SimpleNamespace(step=1, floating_point_operations_so_far=0.0)),
        )
        previous = config.timers
        reporter.on_train_start(context)
        reporter.on_train_step_start(context)
        with timer:
            clock.work(0.25)
        config.timers("backward-compute", log_level=2).start()
        clock.work(1.0 if rank == 1 else 0.5)
        config.timers("backward-compute").stop()
        config.timers("forward-backward", log_level=1).start(barrier=False)
        reporter.on_train_step_end(context)
        reporter.on_train_end(context)
        assert config.timers is previous
        assert sections == [{}, "stop", {"barrier": False}]
        return reporter.metrics, logged

    for metrics, (line,) in on_ranks(2, run):
        assert "| backward 500.00 (rank 0) to 1000.00 ms (rank 1) |" in line
        assert line.endswith("slowest: rank 1 on beta, GPU 3")
        assert metrics["straggler/slowest-rank"] == 1
        assert metrics["straggler/backward-ms-max"] == 1000.0


def test_a_model_without_timers_of_a_schedule_has_no_backward_times():
    reporter = SpeedReporter(StragglerTimer(), log_interval=1)
    reporter.on_train_start(SimpleNamespace(model=object()))
    reporter.on_train_end(SimpleNamespace())
