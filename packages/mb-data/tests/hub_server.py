"""A Hugging Face hub on this machine with one private dataset, for tests: the requests of `HfFileSystem`."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

REPOSITORY, TOKEN = "someone/corpus", "hf_token_of_a_test"
_COMMIT = "0123456789" * 4


class _Handler(BaseHTTPRequestHandler):
    """The server has `files` and `requests`."""

    def log_message(self, *_):
        pass

    def do_GET(self):
        files, path = self.server.files, unquote(urlsplit(self.path).path)
        api, resolve = f"/api/datasets/{REPOSITORY}", f"/datasets/{REPOSITORY}/resolve/main/"
        if self._is_refused():
            return
        if path.startswith(resolve):
            self._send_content(files[path.removeprefix(resolve)])
        elif path.startswith(f"{api}/tree/main"):
            self._send_json(_tree(files, path.removeprefix(f"{api}/tree/main").strip("/"), self.path))
        else:
            assert path in (api, f"{api}/revision/main"), path
            self._send_json({"id": REPOSITORY, "sha": _COMMIT, "private": True, "siblings": []})

    do_HEAD = do_GET

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        if self._is_refused():
            return
        is_json = "json" in self.headers.get("Content-Type", "")
        paths = json.loads(body)["paths"] if is_json else parse_qs(body)["paths"]
        self._send_json([entry for path in paths for entry in _entry(self.server.files, path)])

    def _is_refused(self):
        if self.headers.get("Authorization") == f"Bearer {TOKEN}":
            self.server.requests.append((urlsplit(self.path).path, self.headers.get("Range")))
            return False
        self._send_json({"error": "Repository not found"}, status=401, code="RepoNotFound")
        return True

    def _send_json(self, values, *, status=200, code=None):
        headers = {"Content-Type": "application/json", **({"X-Error-Code": code} if code else {})}
        self._send(status, json.dumps(values).encode(), headers)

    def _send_content(self, content):
        wanted = self.headers.get("Range")
        start, end = 0, len(content)
        if wanted:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start, end = int(first), min(int(last) + 1 if last else end, end)
        headers = {"Content-Range": f"bytes {start}-{end - 1}/{len(content)}", "ETag": '"of the file"'}
        self._send(206 if wanted else 200, content[start:end], headers)

    def _send(self, status, body, headers):
        self.send_response(status)
        for name, value in {**headers, "X-Repo-Commit": _COMMIT, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextmanager
def running(files):
    """Serve files, contents by path in the repository. Yield the URL and the paths and ranges of the requests."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.files, server.requests = files, []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", server.requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _entry(files, path):
    """Return the state of a file or folder as a list; empty if it does not exist."""
    if path in files:
        commit = {"id": _COMMIT, "title": "files", "date": "2026-01-02T03:04:05.000Z"}
        return [
            {"type": "file", "path": path, "size": len(files[path]), "oid": "1" * 40, "lastCommit": commit}
        ]
    if any(name.startswith(f"{path}/") for name in files):
        return [{"type": "directory", "path": path, "oid": "2" * 40}]
    return []


def _tree(files, folder, query):
    prefix = f"{folder}/" if folder else ""
    inside = [name for name in files if name.startswith(prefix)]
    if "recursive=True" not in query and "recursive=true" not in query:
        return [
            entry
            for name in sorted({prefix + name.removeprefix(prefix).partition("/")[0] for name in inside})
            for entry in _entry(files, name)
        ]
    folders = {
        "/".join(name.split("/")[:depth]) for name in inside for depth in range(1, name.count("/") + 1)
    }
    listed = sorted({*inside, *(each for each in folders if each.startswith(prefix))})
    return [entry for name in listed for entry in _entry(files, name)]
