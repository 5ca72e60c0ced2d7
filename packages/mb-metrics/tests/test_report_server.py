"""Server of a live report: this machine, its token, its own name, and the current state of the run."""

import http.client
import json
import threading
from contextlib import contextmanager

import pytest
from sample_runs import BEGIN, steady, write_run

from mb_metrics.report.run_reader import RunReader
from mb_metrics.report.server import ReportPortError, ReportServer


@contextmanager
def serving(folder):
    reader = RunReader(folder)

    def read():
        reader.poll()
        return [reader.run()]

    server = ReportServer(read, clock=lambda: BEGIN + 10)
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        yield server
    finally:
        server.close()
        thread.join()


def get(server, path, *, host=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request("GET", path, headers={"Host": host or f"127.0.0.1:{server.port}"})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_a_page_follows_its_run(tmp_path):
    with serving(write_run(tmp_path, steady(1, 5, 1))) as server:
        path = server.url.partition(str(server.port))[2]
        status, page = get(server, path)
        assert (status, "connect-src 'self'" in page, f"/data?token={server.token}" in page) == (
            200,
            True,
            True,
        )
        write_run(tmp_path, steady(1, 7, 1))
        _, text = get(server, f"/data?token={server.token}")
        assert json.loads(text)["data"]["charts"][0]["curves"][0]["x"] == [1, 2, 3, 4, 5, 6, 7]


def test_nothing_without_the_token_or_under_another_name(tmp_path):
    with serving(write_run(tmp_path, steady(1, 2, 1))) as server:
        good = f"/?token={server.token}"
        answers = [
            get(server, "/")[0],
            get(server, "/?token=guess")[0],
            get(server, good, host="evil.example")[0],
            get(server, f"/etc/passwd?token={server.token}")[0],
            get(server, good, host=f"localhost:{server.port}")[0],
        ]
    assert answers == [401, 401, 421, 404, 200]


def test_a_port_in_use_is_an_error(tmp_path):
    with (
        serving(write_run(tmp_path, steady(1, 2, 1))) as server,
        pytest.raises(
            ReportPortError, match=rf"--port: cannot listen on 127.0.0.1, port {server.port} .*another port"
        ),
    ):
        ReportServer(list, port=server.port)


def test_an_address_that_is_none_is_a_bad_request(tmp_path, capfd):
    with serving(write_run(tmp_path, steady(1, 2, 1))) as server:
        assert get(server, "http://[")[0] == 400
    assert "Traceback" not in capfd.readouterr().err
