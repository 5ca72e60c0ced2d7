import gzip
import json
import os
import signal
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mb_data import ByteTokenizer, IndexedReader, build_indexed, verify_prefix
from mb_data.errors import (
    BadDocumentError,
    CorpusError,
    DataPathError,
    EngineError,
    IndexedFormatError,
    PairExistsError,
    ShardPlanError,
    WorkerError,
)
from mb_data.text.build import build_pair
from mb_data.text.documents import read_chunks
from mb_data.text.reader import examine_prefix
from mb_data.text.selection import Selection
from mb_data.text.shards.build import build_shards
from mb_data.text.shards.engines import select_engine
from mb_data.text.shards.origin import document_origins
from mb_data.text.shards.plan import cut_files

LOCAL = select_engine("local", workers=1)


def shards_of(prefix):
    return sorted(Path(f"{prefix}.shards").glob("*.bin"))


def content(prefix):
    """Return the tokens and the index of a prefix, as bytes."""
    pair = Path(f"{prefix}.bin")
    tokens = pair.read_bytes() if pair.exists() else b"".join(path.read_bytes() for path in shards_of(prefix))
    return tokens, Path(f"{prefix}.idx").read_bytes()


def build(inputs, prefix, *, engine=LOCAL, shard_bytes=200, **options):
    return build_shards(
        inputs,
        tokenizer="ByteTokenizer",
        prefix=str(prefix),
        engine=engine,
        shard_bytes=shard_bytes,
        **options,
    )


def write_lines(path, texts):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


@pytest.fixture
def corpus(tmp_path):
    """A folder with files of each kind: cut at lines, cut at row groups, and read whole."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    folder = tmp_path / "in"
    folder.mkdir()
    write_lines(folder / "a.jsonl", [f"line {number} " * (1 + number % 5) for number in range(60)])
    (folder / "b.txt").write_text("a text of its own")
    table = pyarrow.table({"text": [f"row {number}" * 9 for number in range(40)]})
    parquet.write_table(table, folder / "c.parquet", row_group_size=7, compression=None)
    (folder / "d.jsonl.gz").write_bytes(gzip.compress(b'{"text": "compressed"}\n' * 50))
    (folder / "e.csv").write_text("text\n" + "of a table\n" * 30)
    return folder


@pytest.mark.parametrize("shard_bytes", [100, 333, 5000, 1 << 30])
def test_shards_have_the_tokens_and_the_index_of_a_pair(tmp_path, corpus, shard_bytes):
    pair = build_indexed([corpus], tokenizer=ByteTokenizer(), prefix=tmp_path / "pair")
    report = build([corpus], tmp_path / "shards", shard_bytes=shard_bytes)
    assert content(tmp_path / "shards") == content(tmp_path / "pair")
    assert report.summary == pair == verify_prefix(tmp_path / "shards")
    assert report.shards == report.built == len(shards_of(tmp_path / "shards"))
    assert shard_bytes > 333 or report.shards > 10
    for path in shards_of(tmp_path / "shards"):
        assert examine_prefix(path.with_suffix(""), vocab_size=300, eod=ByteTokenizer.eod) == []


@given(lengths=st.lists(st.integers(0, 40), min_size=1, max_size=30), shard_bytes=st.integers(1, 80))
@settings(max_examples=60, deadline=None)
def test_each_line_is_in_one_shard_and_in_its_order(tmp_path_factory, lengths, shard_bytes):
    path = tmp_path_factory.mktemp("lines") / "a.jsonl"
    path.write_text("\n".join("x" * length for length in lengths))
    shards = list(cut_files([path], shard_bytes=shard_bytes))
    read = [line for shard in shards for chunk in read_chunks(shard) for line in chunk.documents]
    assert b"".join(read) == path.read_bytes()
    assert [line.rstrip(b"\n") for line in read if line.strip()] == [
        b"x" * length for length in lengths if length
    ]


def test_the_row_of_a_parquet_range_is_counted_from_the_beginning_of_the_file(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    texts = ["fine"] * 25 + [None]
    parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "a.parquet", row_group_size=5)
    with pytest.raises(BadDocumentError, match=r"a\.parquet: row 26: the value of 'text' is not a string"):
        build([tmp_path / "a.parquet"], tmp_path / "out", shard_bytes=1)


def test_an_interrupted_build_resumes_with_the_missing_shards(tmp_path, corpus):
    def interrupted(task, numbers):
        for number in [*numbers][:3]:
            yield task(number)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build([corpus], tmp_path / "out", engine=interrupted)
    assert not Path(f"{tmp_path}/out.idx").exists()
    kept = {path.name: path.stat().st_mtime_ns for path in shards_of(tmp_path / "out")}
    report = build([corpus], tmp_path / "out")
    assert (len(kept), report.built) == (3, report.shards - 3)
    assert {name: Path(f"{tmp_path}/out.shards/{name}").stat().st_mtime_ns for name in kept} == kept
    build([corpus], tmp_path / "whole")
    assert content(tmp_path / "out") == content(tmp_path / "whole")
    assert build([corpus], tmp_path / "out").built == 0


def test_a_killed_worker_loses_its_shard_only(tmp_path, corpus):
    program = tmp_path / "deadly.py"
    marker = tmp_path / "killed"
    program.write_text(
        "import os, pathlib, signal\n"
        "def keep(row):\n"
        f"    marker = pathlib.Path({str(marker)!r})\n"
        "    if row['text'].startswith('line 40') and not marker.exists():\n"
        "        marker.touch()\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return True\n"
    )
    options = {"selection": Selection(filter_function=f"{program}:keep")}
    with pytest.raises(WorkerError):
        build([corpus], tmp_path / "out", engine=select_engine("local", workers=2), **options)
    report = build([corpus], tmp_path / "out", engine=select_engine("local", workers=2), **options)
    assert 0 < report.built < report.shards
    build([corpus], tmp_path / "whole")
    assert content(tmp_path / "out") == content(tmp_path / "whole")
    assert not list(Path(f"{tmp_path}/out.shards").glob(".work-*"))


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"shard_bytes": 300}, "shard_bytes was 200 and is 300"),
        ({"append_eod": False}, "append_eod was True and is False"),
        ({"selection": Selection(min_characters=5)}, "selection was"),
    ],
)
def test_a_build_with_other_options_does_not_resume(tmp_path, changed, named):
    lines = write_lines(tmp_path / "a.jsonl", ["text"] * 40)
    build([lines], tmp_path / "out")
    with pytest.raises(ShardPlanError, match=named):
        build([lines], tmp_path / "out", **changed)


def test_another_tokenizer_is_rejected(tmp_path):
    bpe = pytest.importorskip("mb_data.tokenizers.bpe")
    lines = write_lines(tmp_path / "a.jsonl", ["some text to learn from"] * 40)
    for size in (260, 270):
        bpe.train_bpe([lines], vocab_size=size, out=tmp_path / f"{size}.json")
    values = {"prefix": str(tmp_path / "out"), "engine": LOCAL, "shard_bytes": 200}
    build_shards([lines], tokenizer=tmp_path / "260.json", **values)
    with pytest.raises(ShardPlanError, match=r"tokenizer was .*260\.json.*; tokenizer_fingerprint was"):
        build_shards([lines], tokenizer=tmp_path / "270.json", **values)

    def changing(task, numbers):
        (tmp_path / "260.json").write_bytes((tmp_path / "270.json").read_bytes())
        yield task(0)

    values["prefix"] = str(tmp_path / "changed")
    with pytest.raises(ShardPlanError, match=r"260\.json: was changed since the build began"):
        build_shards([lines], tokenizer=tmp_path / "260.json", **{**values, "engine": changing})


def test_shards_with_changed_inputs_are_built_again(tmp_path):
    files = [write_lines(tmp_path / f"{name}.jsonl", [name * 30] * 3) for name in "abc"]
    build(files, tmp_path / "out", shard_bytes=150)
    write_lines(files[1], ["changed"] * 9)
    added = write_lines(tmp_path / "d.jsonl", ["d" * 90] * 2)
    report = build([*files, added], tmp_path / "out", shard_bytes=150)
    assert 0 < report.built < report.shards
    build([*files, added], tmp_path / "whole", shard_bytes=150)
    assert content(tmp_path / "out") == content(tmp_path / "whole")
    build(files[:1], tmp_path / "out", shard_bytes=150)
    assert verify_prefix(tmp_path / "out").documents == 3
    build(files[:1], tmp_path / "first", shard_bytes=150)
    names = [
        sorted(path.name for path in Path(f"{tmp_path}/{name}.shards").iterdir()) for name in ("out", "first")
    ]
    assert names[0] == names[1]


def test_a_data_set_is_not_read_while_its_shards_are_built_again(tmp_path):
    lines = write_lines(tmp_path / "a.jsonl", ["ab", "cdef"] * 20)
    build([lines], tmp_path / "out")
    write_lines(lines, ["abcd", "ef"] * 20)  # as many bytes, other documents

    def interrupted(task, numbers):
        yield task(numbers[0])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build([lines], tmp_path / "out", engine=interrupted)
    with pytest.raises(DataPathError, match=r"out\.idx exists, but out\.bin does not"):
        verify_prefix(tmp_path / "out")
    build([lines], tmp_path / "out")
    assert len(IndexedReader(tmp_path / "out").document(0)) == 5


def test_an_input_that_changes_during_the_build_is_rejected(tmp_path):
    lines = write_lines(tmp_path / "a.jsonl", ["text"] * 40)

    def changing(task, numbers):
        write_lines(lines, ["other"] * 40)
        yield task(0)

    with pytest.raises(ShardPlanError, match=r"a\.jsonl: was changed since the build began"):
        build([lines], tmp_path / "out", engine=changing)


def test_a_function_that_changes_during_the_build_is_rejected(tmp_path):
    lines = write_lines(tmp_path / "a.jsonl", ["text"] * 40)
    program = tmp_path / "keep.py"
    program.write_text("def keep(row): return True")

    def changing(task, numbers):
        program.write_text("def keep(row): return False")
        yield task(0)

    with pytest.raises(ShardPlanError, match=r"keep\.py:keep: the file was changed since the build began"):
        build(
            [lines], tmp_path / "out", engine=changing, selection=Selection(filter_function=f"{program}:keep")
        )


def test_a_bad_line_in_a_later_shard_is_named_and_may_be_skipped_then(tmp_path):
    lines = tmp_path / "a.jsonl"
    lines.write_text('{"text": "fine"}\n' * 41 + "{broken\n" + '{"text": "fine"}\n' * 20)
    with pytest.raises(BadDocumentError, match=r"a\.jsonl:42: is not JSON"):
        build([lines], tmp_path / "out")
    kept = len(shards_of(tmp_path / "out"))
    report = build([lines], tmp_path / "out", selection=Selection(bad_lines="skip"))
    assert (report.built, report.summary.documents) == (report.shards - kept, 61)
    assert report.selection.documents == {"kept": 61, "bad line": 1}
    assert "a.jsonl:42: is not JSON" in report.selection.bad_lines[0]
    with pytest.raises(ShardPlanError, match="selection was"):
        build([lines], tmp_path / "out")


def test_equal_texts_of_all_shards_are_dropped_but_for_the_first(tmp_path):
    texts = [f"text {number % 17} " + "x" * (number % 3) for number in range(90)]
    lines = write_lines(tmp_path / "a.jsonl", texts)
    selection = Selection(deduplicate=True)
    report = build([lines], tmp_path / "out", selection=selection)
    expected = list(dict.fromkeys(texts))
    reader = IndexedReader(tmp_path / "out")
    found = [ByteTokenizer().decode(reader.document(number)[:-1].tolist()) for number in range(len(reader))]
    assert found == expected
    assert report.selection.documents == {"kept": len(expected), "duplicate": 90 - len(expected)}
    build_pair([lines], tokenizer=ByteTokenizer(), prefix=tmp_path / "pair", selection=selection, workers=2)
    assert content(tmp_path / "out") == content(tmp_path / "pair")
    more = write_lines(
        tmp_path / "0.jsonl", texts[:20]
    )  # comes first: what it has is dropped from the shards there
    both = [more, lines]
    build(both, tmp_path / "out", selection=selection)
    build_pair(both, tokenizer=ByteTokenizer(), prefix=tmp_path / "both", selection=selection)
    assert content(tmp_path / "out") == content(tmp_path / "both")


def test_the_origin_of_a_document_is_found_again(tmp_path, corpus):
    (corpus / "a.jsonl").write_text(
        '{"text": "twice"}\n' + (corpus / "a.jsonl").read_text() + '{"text": "twice"}\n'
    )
    selection = Selection(deduplicate=True, filter_function=None, min_characters=5)
    build([corpus], tmp_path / "out", shard_bytes=300, selection=selection)
    reader, tokenizer = IndexedReader(tmp_path / "out"), ByteTokenizer()
    origins = document_origins(tmp_path / "out", range(len(reader)))
    assert len(origins) == len(reader)
    found = {origins[number]: tokenizer.decode(reader.document(number)[:-1].tolist()) for number in origins}
    lines = (corpus / "a.jsonl").read_text().splitlines()
    expected = {
        f"{corpus}/a.jsonl:{1 + number}": json.loads(line)["text"] for number, line in enumerate(lines[:-1])
    }
    assert {origin: found[origin] for origin in expected} == expected
    assert found[f"{corpus}/b.txt"] == "a text of its own"
    assert found[f"{corpus}/c.parquet: row 31"] == "row 30" * 9
    assert found[f"{corpus}/d.jsonl.gz:1"] == "compressed"
    build_indexed([corpus], tokenizer=tokenizer, prefix=tmp_path / "pair")
    assert document_origins(tmp_path / "pair", [0]) == {}


def test_a_build_without_documents_is_no_data_set(tmp_path):
    lines = write_lines(tmp_path / "a.jsonl", ["short"] * 40)
    with pytest.raises(CorpusError, match=r"no text that is kept \(40 shorter than 9 characters\)"):
        build([lines], tmp_path / "out", selection=Selection(min_characters=9))
    with pytest.raises(DataPathError):
        verify_prefix(tmp_path / "out")


def test_a_pair_is_not_covered_by_shards(tmp_path):
    lines = write_lines(tmp_path / "a.jsonl", ["text"] * 4)
    build_indexed([lines], tokenizer=ByteTokenizer(), prefix=tmp_path / "out")
    with pytest.raises(PairExistsError, match=r"out\.bin: exists already"):
        build([lines], tmp_path / "out")


class TestDamage:
    @pytest.fixture
    def prefix(self, tmp_path):
        build(
            [write_lines(tmp_path / "a.jsonl", [f"text {number}" for number in range(40)])], tmp_path / "out"
        )
        return tmp_path / "out"

    def test_a_lost_shard(self, prefix):
        shards_of(prefix)[1].unlink()
        with pytest.raises(DataPathError, match=r"shard-00001\.bin: no such file, but the manifest"):
            verify_prefix(prefix)
        build([prefix.parent / "a.jsonl"], prefix)
        assert examine_prefix(prefix) == []

    def test_a_short_shard(self, prefix):
        with shards_of(prefix)[1].open("r+b") as stream:
            stream.truncate(10)
        with pytest.raises(IndexedFormatError, match=r"shard-00001\.bin: 10 bytes found"):
            verify_prefix(prefix)

    def test_another_token(self, prefix):
        with shards_of(prefix)[1].open("r+b") as stream:
            stream.write(b"\x01\x00")
        assert "shard-00001.bin: has another hash" in examine_prefix(prefix)[0]

    @pytest.mark.parametrize(
        "damage",
        [
            "{",
            "[]",
            '{"version": 2, "shards": []}',
            '{"version": 1, "shards": [{"path": "../x.bin", "bytes": 1, "documents": 1, "digest": ""}]}',
            '{"version": 1, "shards": [{"path": "x.bin", "bytes": -1, "documents": 1, "digest": ""}]}',
        ],
    )
    def test_a_damaged_manifest(self, prefix, damage):
        Path(f"{prefix}.shards/manifest.json").write_text(damage)
        with pytest.raises(IndexedFormatError, match=r"manifest\.json: is not the manifest of shards"):
            verify_prefix(prefix)

    def test_a_damaged_record(self, prefix):
        Path(f"{prefix}.shards/shard-00001.json").write_text("{")
        with pytest.raises(ShardPlanError, match=r"shard-00001\.json: is damaged"):
            build([prefix.parent / "a.jsonl"], prefix)

    def test_the_folder_is_no_data_path(self, prefix):
        with pytest.raises(DataPathError, match=rf"Use {prefix}\."):
            verify_prefix(f"{prefix}.shards")
        with pytest.raises(DataPathError, match=rf"Use {prefix}\."):
            verify_prefix(f"{prefix}.shards/manifest.json")


def test_requests_for_the_state_of_a_file_do_not_grow_with_its_shards(tmp_path, monkeypatch):
    upath = pytest.importorskip("upath")
    lines = upath.UPath("memory://states/a.jsonl")
    lines.parent.mkdir(parents=True, exist_ok=True)
    lines.write_text('{"text": "text"}\n' * 40)
    filesystem, calls = type(lines.fs), []
    info = filesystem.info
    monkeypatch.setattr(
        filesystem, "info", lambda self, path, **values: calls.append(path) or info(self, path, **values)
    )

    def interrupted(task, numbers):
        assert len(numbers) == expected
        raise KeyboardInterrupt

    counts = []
    for expected, shard_bytes in ((1, 1 << 30), (20, 34)):
        calls.clear()
        with pytest.raises(KeyboardInterrupt):
            build([str(lines)], tmp_path / str(expected), engine=interrupted, shard_bytes=shard_bytes)
        counts.append(len(calls))
    assert counts[0] == counts[1] > 0


def test_engines_that_are_not_there():
    with pytest.raises(EngineError, match="there is no engine 'dask'"):
        select_engine("dask", workers=1)
    with pytest.raises(EngineError, match="--slurm-option: has no meaning for --engine local"):
        select_engine("local", workers=1, slurm_options=["--partition=cpu"])


class TestSlurm:
    """A program `sbatch` that runs the jobs of an array here, and loses one of them at the first call."""

    @pytest.fixture
    def sbatch(self, tmp_path, monkeypatch):
        program = tmp_path / "bin" / "sbatch"
        program.parent.mkdir()
        program.write_text(
            "#!/bin/bash\n"
            f'echo "$@" >> {tmp_path}/calls\n'
            'for option in "$@"; do case $option in --array=0-*) last=${option#--array=0-};; esac; done\n'
            "script=$(cat)\n"
            f"first=0; [ -e {tmp_path}/lose ] && {{ rm {tmp_path}/lose; first=1; }}\n"
            'for task in $(seq $first $last); do SLURM_ARRAY_TASK_ID=$task sh -c "$script" || code=1; done\n'
            "exit ${code:-0}\n"
        )
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
        return tmp_path

    def test_an_array_builds_the_shards_and_resumes(self, sbatch):
        lines = write_lines(sbatch / "a.jsonl", [f"text {number}" for number in range(40)])
        engine = select_engine("slurm", workers=2, slurm_options=["--partition=cpu"])
        (sbatch / "lose").touch()
        with pytest.raises(EngineError, match="shards are missing, the first is shard-00000"):
            build([lines], sbatch / "out", engine=engine)
        report = build([lines], sbatch / "out", engine=engine)
        assert 0 < report.built < report.shards
        build([lines], sbatch / "whole")
        assert content(sbatch / "out") == content(sbatch / "whole")
        assert build([lines], sbatch / "out", engine=engine).built == 0
        call = (sbatch / "calls").read_text().splitlines()[0]
        assert "--wait --array=0-1 --requeue" in call
        assert call.endswith("--partition=cpu")

    def test_the_error_of_a_job_is_in_the_message(self, sbatch):
        lines = sbatch / "a.jsonl"
        lines.write_text("{broken\n")
        with pytest.raises(EngineError, match=r"a\.jsonl:1: is not JSON"):
            build([lines], sbatch / "out", engine=select_engine("slurm", workers=2))

    def test_without_sbatch(self, tmp_path, monkeypatch):
        monkeypatch.setenv("PATH", str(tmp_path))
        lines = write_lines(tmp_path / "a.jsonl", ["text"])
        with pytest.raises(EngineError, match="there is no program sbatch"):
            build([lines], tmp_path / "out", engine=select_engine("slurm", workers=2))


@pytest.fixture(scope="class")
def two_cpus():
    """A cluster of Ray on this machine."""
    if find_spec("ray"):
        select_engine("ray", workers=1)  # sets how Ray starts its workers, before it is imported
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.usefixtures("two_cpus")
class TestRay:
    @pytest.fixture
    def lines(self, tmp_path):
        return write_lines(tmp_path / "a.jsonl", [f"text {number}" for number in range(40)])

    def test_a_build_continues_when_a_worker_is_killed(self, tmp_path, lines):
        program, marker = tmp_path / "deadly.py", tmp_path / "killed"
        program.write_text(
            "import os, pathlib, signal\n"
            "def keep(row):\n"
            f"    marker = pathlib.Path({str(marker)!r})\n"
            "    if row['text'] == 'text 20' and not marker.exists():\n"
            "        marker.touch()\n"
            f"        os.kill(os.getpid(), {signal.SIGKILL.value})\n"
            "    return True\n"
        )
        values = {"engine": select_engine("ray", workers=None), "shard_bytes": 300}
        report = build(
            [lines], tmp_path / "out", selection=Selection(filter_function=f"{program}:keep"), **values
        )
        assert marker.exists()
        assert report.built == report.shards > 2
        build([lines], tmp_path / "whole", shard_bytes=300)
        assert content(tmp_path / "out") == content(tmp_path / "whole")

    def test_the_error_of_a_task_is_raised_here(self, tmp_path):
        (tmp_path / "a.jsonl").write_text("{broken\n")
        with pytest.raises(BadDocumentError, match=r"a\.jsonl:1: is not JSON"):
            build([tmp_path / "a.jsonl"], tmp_path / "bad", engine=select_engine("ray", workers=2))

    @pytest.mark.parametrize(("workers", "expected"), [(None, 2), (2, 2), (1, 1)])
    def test_workers_are_the_shards_that_are_built_at_once(self, tmp_path, lines, workers, expected):
        """A document waits until as many shards are in it as may be, and counts those that are."""
        program, folder = tmp_path / "meeting.py", tmp_path / "meeting"
        folder.mkdir()
        program.write_text(
            "import os, pathlib, time\n"
            f"folder, expected = pathlib.Path({str(folder)!r}), {expected}\n"
            "def keep(row):\n"
            "    (folder / f'{os.getpid()}.here').touch()\n"
            "    while len(list(folder.glob('*.here'))) < expected and not (folder / 'met').exists():\n"
            "        time.sleep(0.01)\n"
            "    (folder / 'met').touch()\n"
            "    number = len(list(folder.glob('*.here')))\n"
            "    (folder / f'together-{number}').touch()\n"
            "    (folder / f'{os.getpid()}.here').unlink()\n"
            "    return True\n"
        )
        build(
            [lines],
            tmp_path / "out",
            engine=select_engine("ray", workers=workers),
            shard_bytes=300,
            selection=Selection(filter_function=f"{program}:keep"),
        )
        found = {int(path.name.partition("-")[2]) for path in folder.glob("together-*")}
        assert max(found) == expected


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_ray_is_started_with_as_many_cpus_as_workers(tmp_path, workers, monkeypatch):
    engine = select_engine("ray", workers=workers) if find_spec("ray") else LOCAL
    ray = pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    try:
        build([write_lines(tmp_path / "a.jsonl", ["text"])], tmp_path / "out", engine=engine)
        assert ray.cluster_resources()["CPU"] == workers
    finally:
        ray.shutdown()


def test_an_address_without_a_cluster_is_named(tmp_path, monkeypatch):
    engine = select_engine("ray", workers=1) if find_spec("ray") else LOCAL
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", "nonsense")
    with pytest.raises(EngineError, match=r"cannot connect to the cluster \(.*RAY_ADDRESS='nonsense'\)"):
        build([write_lines(tmp_path / "a.jsonl", ["text"])], tmp_path / "out", engine=engine)


def test_object_storage(tmp_path):
    upath = pytest.importorskip("upath")
    bucket = upath.UPath("memory://bucket")
    (bucket / "in").mkdir(parents=True)
    (bucket / "in" / "a.jsonl").write_text("".join(f'{{"text": "text {number}"}}\n' for number in range(40)))
    selection = Selection(deduplicate=True)
    report = build(["memory://bucket/in"], "memory://bucket/out", selection=selection)
    assert report.built == report.shards > 2
    assert build(["memory://bucket/in"], "memory://bucket/out", selection=selection).built == 0
    for path in [*(bucket / "out.shards").iterdir(), bucket / "out.idx"]:
        here = tmp_path / path.path.removeprefix("/bucket/")
        here.parent.mkdir(exist_ok=True)
        here.write_bytes(path.read_bytes())
    (tmp_path / "a.jsonl").write_bytes((bucket / "in" / "a.jsonl").read_bytes())
    build_indexed([tmp_path / "a.jsonl"], tokenizer=ByteTokenizer(), prefix=tmp_path / "pair")
    assert content(tmp_path / "out") == content(tmp_path / "pair")
    assert np.array_equal(IndexedReader(tmp_path / "out").tokens[:], IndexedReader(tmp_path / "pair").tokens)
