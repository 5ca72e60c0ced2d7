"""HTTP server on this machine for a report that follows its runs. Standard library only."""

import hmac
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.parse import parse_qs, urlsplit

from mb_metrics.errors import MetricsError
from mb_metrics.report.page import report_html, report_parts
from mb_metrics.report.run_history import RunHistory

_HOST = "127.0.0.1"


class ReportPortError(MetricsError, OSError):
    """Error raised when the port of the server cannot be used."""

    bad_input = True


class ReportServer:
    """Server of a page that reads the state of its runs every few seconds.

    It listens on this machine only. A request without the random token gets the status 401, so that neither another
    user of the machine nor a web page can read the runs, and a request for another host name gets 421. A context
    manager that closes the port.

    Args:
        read: Returns the current runs; it is called by one thread at a time.
        port: Port; 0 selects a free one.
        clock: Function that returns seconds since the epoch.

    Attributes:
        token: Token; `url` contains it.

    Raises:
        ReportPortError: the port is in use, or this user is not allowed to listen on it.
    """

    def __init__(
        self,
        read: Callable[[], Sequence[RunHistory]],
        *,
        port: int = 0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.token = secrets.token_urlsafe(24)
        self._read = read
        self._clock = clock
        self._lock = threading.Lock()
        try:
            self._server = ThreadingHTTPServer((_HOST, port), self._handler())
        except (OSError, OverflowError) as error:  # OverflowError: the number is not a valid port
            raise ReportPortError(
                f"--port: cannot listen on {_HOST}, port {port} ({error}). Choose another port, or 0 for a free one."
            ) from error

    @property
    def port(self) -> int:
        """Port of the server."""
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """Address of the page."""
        return f"http://{_HOST}:{self.port}/?token={self.token}"

    def serve(self) -> None:
        """Answer requests until `close` is called in another thread, or until an interrupt."""
        self._server.serve_forever(0.2)

    def close(self) -> None:
        """Stop `serve`, if it runs in another thread, and close the port."""
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> "ReportServer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.server_close()

    def _answer(self, path: str) -> tuple[str, str] | None:
        """Return the type and text of the answer to a request; None if there is no such page."""
        if path not in ("/", "/data"):
            return None
        with self._lock:
            runs, now = self._read(), self._clock()
            if path == "/":
                return "text/html", report_html(runs, now=now, live=f"/data?token={self.token}")
            return "application/json", report_parts(runs, now=now).as_json()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            timeout = 10.0  # seconds: for a client that connects and sends nothing

            def do_GET(self) -> None:
                try:
                    request = urlsplit(self.path)
                except ValueError:  # an address without a closing bracket
                    self.send_error(HTTPStatus.BAD_REQUEST)
                    return
                names = {f"{name}:{server.port}" for name in (_HOST, "localhost")}
                if self.headers.get("Host", "") not in names:
                    self.send_error(HTTPStatus.MISDIRECTED_REQUEST, "this server answers as 127.0.0.1 only")
                    return
                given = parse_qs(request.query).get("token", [""])[0]
                if not hmac.compare_digest(given.encode(), server.token.encode()):
                    self.send_error(HTTPStatus.UNAUTHORIZED, "the token is missing or wrong")
                    return
                answer = server._answer(request.path)
                if answer is None:
                    self.send_error(HTTPStatus.NOT_FOUND)
                    return
                kind, body = answer[0], answer[1].encode()
                self.send_response(HTTPStatus.OK)
                self.send_header("Content-Type", f"{kind}; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Cache-Control", "no-store")
                self.send_header("X-Content-Type-Options", "nosniff")
                self.send_header("Referrer-Policy", "no-referrer")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Write nothing to stderr."""

        return Handler
