"""A port that switches the timer of slow ranks on and off while a run goes on. The standard library only."""

import socketserver
import threading
from http.server import BaseHTTPRequestHandler
from types import TracebackType


class SwitchPortError(OSError):
    """The port of the switch cannot be used."""


class StragglerSwitch:
    """Listens on a port of rank 0: each HTTP request of "/" (`curl RANK0:PORT`) asks for the other state.

    The timer follows at its next report. A context: the port is free again at its end. Anybody who reaches the port
    can switch; nothing else can be done there.

    Args:
        port: to listen on; 0: one that is free, see `port`.
        on: the state at the beginning.
        host: address to listen on; empty: all of its own machine.

    Raises:
        SwitchPortError: somebody else listens there, or this user must not.
    """

    def __init__(self, *, port: int, on: bool, host: str = "") -> None:
        self._wanted = on
        try:
            self._server = _Server((host, port), self._handler())
        except (OSError, OverflowError) as error:  # the latter for numbers that are no port
            raise SwitchPortError(
                f"straggler switch: cannot listen on port {port} ({error}), so that nobody could switch. "
                "Choose another port, or go on without a switch."
            ) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="straggler-switch", daemon=True
        )
        self._thread.start()

    @property
    def wanted(self) -> bool:
        """Whether the last request, or the beginning, asked for measuring."""
        return self._wanted

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop listening, and wait until nobody is answered any more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> "StragglerSwitch":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _turn(self) -> bool:
        self._wanted = not self._wanted
        return self._wanted

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        turn = self._turn

        class Handler(BaseHTTPRequestHandler):
            timeout = 5.0  # seconds: one who connects and says nothing does not keep others out for long

            def do_GET(self) -> None:
                if self.path != "/":
                    self.send_error(404)
                    return
                state = "on" if turn() else "off"
                text = f"The timer of slow ranks will be {state} from the next log interval.\n".encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *args: object) -> None:
                """Write nothing to stderr."""

        return Handler


class _Server(socketserver.TCPServer):
    allow_reuse_address = True
