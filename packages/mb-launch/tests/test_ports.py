"""The port that MASTER_PORT requests."""

import socket

import pytest

from mb_launch import PortError, requested_port


def test_no_port_is_requested_unless_it_is_set():
    assert requested_port({}) is None


@pytest.mark.parametrize("text", ["", "http", "0", "70000"])
def test_a_port_number_that_does_not_exist_is_an_error(text):
    with pytest.raises(PortError, match="MASTER_PORT: must be a number from 1 to 65535"):
        requested_port({"MASTER_PORT": text})


def test_a_port_is_free_or_an_error():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(
            PortError, match=rf"port {port} is in use .*unset MASTER_PORT to take any free one"
        ):
            requested_port({"MASTER_PORT": str(port)})
    assert requested_port({"MASTER_PORT": str(port)}) == port
