import socket

import pytest

from mb_schema.listening import interface_of, listen_on


def resolving_to(monkeypatch, address):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    monkeypatch.setattr(socket, "getaddrinfo", lambda *given, **more: [(family, 1, 6, "", (address, 80))])
    return family


@pytest.mark.parametrize(
    ("host", "resolved", "address"),
    [
        ("localhost", "127.0.0.1", "127.0.0.1"),
        ("127.0.0.1", "127.0.0.1", "127.0.0.1"),
        ("node", "10.0.0.7", "10.0.0.7"),
        ("node", "fe80::1", "fe80::1"),
        ("node", "127.0.1.1", ""),
    ],
)
def test_the_interface_is_that_of_the_host_unless_its_name_is_loopback(monkeypatch, host, resolved, address):
    family = resolving_to(monkeypatch, resolved)
    assert interface_of(host, 80) == (family, resolved, address)


def test_a_socket_listens_on_its_address_alone():
    with listen_on("127.0.0.2", 0, family=socket.AF_INET) as listener:
        address = listener.getsockname()
        socket.create_connection(address, timeout=5).close()
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.3", address[1]), timeout=5)
        with pytest.raises(OSError):
            listen_on(*address, family=socket.AF_INET)
