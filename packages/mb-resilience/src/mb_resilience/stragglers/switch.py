"""HTTP port on rank 0 that switches the straggler timer on and off during a run. Standard library only."""

import hmac
import os
import secrets
import socketserver
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import TracebackType

from mb_resilience.errors import SwitchPortError


class StragglerSwitch:
    """HTTP server on rank 0: each request of "/" with the token toggles the straggler timer.

    The timer applies the state at its next report. A request without the token gets the status 401 and has no effect,
    so that neither another user of the machine nor a web page can toggle the timer. A context manager that closes the
    port.

    Args:
        port: port to listen on; 0 selects a free port, see `port`.
        on: initial state.
        host: address to listen on. The default is reachable from this machine only; "" is every interface.
        token_file: file for the token, readable by this user only; removed by `close`.

    Attributes:
        token: random token; clients send `Authorization: Bearer TOKEN`.

    Raises:
        SwitchPortError: the port is in use, or this user is not allowed to listen on it.
    """

    def __init__(
        self, *, port: int, on: bool, host: str = "127.0.0.1", token_file: Path | None = None
    ) -> None:
        self.token = secrets.token_urlsafe(24)
        self._token_file = token_file
        self._requested = on
        try:
            self._server = _Server((host, port), self._handler())
        except (OSError, OverflowError) as error:  # OverflowError: the number is not a valid port
            raise SwitchPortError(
                f"straggler switch: cannot listen on {host or 'any address'}, port {port} ({error}). "
                "The timer cannot be switched during the run. Choose another address or port."
            ) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="straggler-switch", daemon=True
        )
        if token_file is not None:
            _write_private(token_file, self.token)
        self._thread.start()

    @property
    def requested(self) -> bool:
        """Whether measuring is on, by the last request or initially."""
        return self._requested

    @property
    def port(self) -> int:
        """Port of the server."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop listening, and wait until the last request is answered."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        if self._token_file is not None:
            self._token_file.unlink(missing_ok=True)

    def __enter__(self) -> "StragglerSwitch":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _toggle(self) -> bool:
        self._requested = not self._requested
        return self._requested

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        toggle, expected = self._toggle, f"Bearer {self.token}"

        class Handler(BaseHTTPRequestHandler):
            timeout = 5.0  # seconds: a client that connects and sends nothing blocks others only briefly

            def do_GET(self) -> None:
                if self.path != "/":
                    self.send_error(404)
                    return
                authorization = self.headers.get("Authorization", "")
                if not hmac.compare_digest(authorization.encode(), expected.encode()):
                    self.send_error(401, "the token is missing or wrong")
                    return
                state = "on" if toggle() else "off"
                text = f"The straggler timer will be {state} from the next log interval.\n".encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *args: object) -> None:
                """Write nothing to stderr."""

        return Handler


def _write_private(path: Path, text: str) -> None:
    """Write a new file that only this user can read. An existing file or link is replaced, and not followed."""
    path.unlink(missing_ok=True)
    with os.fdopen(
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
    ) as stream:
        stream.write(text)


class _Server(socketserver.TCPServer):
    allow_reuse_address = True
