"""An S3 server on this machine: moto in a process of its own."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_MAX_ATTEMPTS": "1",
}


class Server:
    """The server. Its buckets are lost when it is stopped."""

    def __init__(self):
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port = found.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.environment = {**CREDENTIALS, "AWS_ENDPOINT_URL": self.url}
        self._process = None

    def start(self):
        program = "from moto.server import main; main()"
        command = [sys.executable, "-c", program, "-H", "127.0.0.1", "-p", str(self.port)]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, **CREDENTIALS}
        )
        for _ in range(200):
            try:
                urllib.request.urlopen(f"{self.url}/moto-api/").close()
            except OSError:
                time.sleep(0.1)
            else:
                return self
        raise RuntimeError("the server did not start")

    def stop(self):
        self._process.kill()
        self._process.wait()

    def bucket(self, name):
        """Create a bucket, and return its URL."""
        self.request("PUT", f"/{name}")
        return f"s3://{name}"

    def request(self, method, path):
        request = urllib.request.Request(f"{self.url}{path}", method=method)
        request.add_header("Host", f"127.0.0.1:{self.port}")
        request.add_header(
            "Authorization", "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request"
        )
        urllib.request.urlopen(request).close()


@contextmanager
def running():
    """Run a server for the block."""
    server = Server().start()
    try:
        yield server
    finally:
        server.stop()
