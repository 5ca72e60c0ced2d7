"""Inputs and outputs in object storage."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mb_data import ByteTokenizer, build_indexed
from mb_data.errors import DataPathError
from mb_data.text.input_files import input_files, storage_errors
from mb_data.text.shards.plan import state_of

upath = pytest.importorskip("upath", reason="needs the extra storage")
FILES = {
    "README.md": b"not below the folder",
    "data/a.jsonl": b"".join(b'{"text": "text %d"}\n' % number for number in range(40)),
    "data/de/b.jsonl.gz": gzip.compress(b'{"text": "compressed"}\n' * 3),
}


class TestHuggingFaceHub:
    """A private dataset of a server that answers as the hub does. A process of its own reads it."""

    @pytest.fixture
    def build(self, tmp_path):
        pytest.importorskip("huggingface_hub")
        import hub_server

        def run(*, token):
            environment = {
                **os.environ,
                "HF_ENDPOINT": url,
                "HF_HOME": str(tmp_path / "home"),
                "HF_HUB_OFFLINE": "0",
            }
            environment |= {"HF_TOKEN": token, "HF_HUB_DISABLE_IMPLICIT_TOKEN": "0"}
            folder = f"hf://datasets/{hub_server.REPOSITORY}/data"
            options = ["--tokenizer", "ByteTokenizer", "--out", tmp_path / "out", "--shard-size", "200B"]
            return subprocess.run(
                [sys.executable, "-m", "mb_data", "build", "--input", folder, *options],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )

        with hub_server.running(FILES) as (url, requests):
            yield run, requests, hub_server.TOKEN

    def test_a_folder_is_read_by_range_with_a_token(self, build, tmp_path):
        run, requests, token = build
        result = run(token=token)
        assert (result.returncode, "5 shards" in result.stdout) == (0, True), result.stderr
        for name, content in FILES.items():
            path = tmp_path / "hub" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        build_indexed([tmp_path / "hub" / "data"], tokenizer=ByteTokenizer(), prefix=tmp_path / "pair")
        shards = sorted((tmp_path / "out.shards").glob("*.bin"))
        assert b"".join(path.read_bytes() for path in shards) == (tmp_path / "pair.bin").read_bytes()
        assert (tmp_path / "out.idx").read_bytes() == (tmp_path / "pair.idx").read_bytes()
        starts = {
            int(wanted.split("=")[1].split("-")[0]) for path, wanted in requests if path.endswith("a.jsonl")
        }
        assert len(starts) == 4  # one request for each of its shards
        plan = (tmp_path / "out.shards" / "plan.jsonl").read_text().splitlines()
        assert {entry["version"] for line in plan[1:] for entry in json.loads(line)} == {"1" * 40}

    def test_without_its_token_nothing_is_found(self, build):
        run, requests, _ = build
        result = run(token="hf_another")
        assert result.returncode == 2
        assert (
            "no such file or folder, but it is an input. Correct the path, or the credentials"
            in result.stderr
        )
        assert "Traceback" not in result.stderr
        assert requests == []


def test_what_a_storage_raises_is_one_error(monkeypatch):
    class UnknownToUs(Exception):
        pass

    def refuse(self, path, **values):
        raise UnknownToUs("no credentials")

    path = upath.UPath("memory://refused/a.jsonl")
    monkeypatch.setattr(type(path.fs), "exists", refuse)
    with pytest.raises(
        DataPathError, match=r"a\.jsonl: the storage does not answer .*\(UnknownToUs: no credentials\)"
    ):
        input_files([str(path)])
    with pytest.raises(UnknownToUs), storage_errors(Path("local")):
        raise UnknownToUs


@pytest.mark.parametrize("name", ["ETag", "etag", "blob_id"])
def test_the_version_of_an_object_is_its_tag(monkeypatch, name):
    path = upath.UPath("memory://tags/a.jsonl")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("text")
    info = type(path.fs).info
    monkeypatch.setattr(
        type(path.fs), "info", lambda self, path, **values: {**info(self, path), name: '"1f"'}
    )
    assert state_of(path) == (4, '"1f"')


def test_the_version_of_a_local_file_is_its_time(tmp_path):
    (tmp_path / "a").write_text("text")
    os.utime(tmp_path / "a", (5, 1700000000.25))
    assert state_of(tmp_path / "a") == (4, 1700000000.25)
