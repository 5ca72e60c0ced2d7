"""Formats of text and of samples: tables, compressed files, and data sets that Hugging Face's library saves."""

import bz2
import csv
import gzip
import json
import lzma
import sys
import tracemalloc

import numpy as np
import pytest

from mb_data import (
    BadDocumentError,
    ByteTokenizer,
    DataPathError,
    FinetuningDatasetConfig,
    TextCorpusConfig,
    build_indexed,
    tokenize_samples,
)
from mb_data.errors import FormatLibraryError
from mb_data.finetuning.files import sample_files
from mb_data.text.documents import read_chunks
from mb_data.text.input_files import input_files
from mb_data.text.sources import read_documents, read_sources

ROWS = [{"text": "a", "number": "1"}, {"text": "", "number": "2"}, {"text": 'b"\nä', "number": "3"}]
TEXTS = ["a", 'b"\nä']
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def documents(folder, *files, **options):
    """Return the documents of a pair that is built from files."""
    build_indexed([*files], tokenizer=ByteTokenizer(), prefix=folder / "out", **options)
    ids = np.fromfile(folder / "out.bin", np.uint16)
    return [
        ByteTokenizer().decode(part.tolist()) for part in np.split(ids, np.flatnonzero(ids == 256) + 1)[:-1]
    ]


def write_csv(path, rows=ROWS, delimiter=","):
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, rows[0], delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_table(path, rows=ROWS, *, kind="file"):
    pyarrow = pytest.importorskip("pyarrow", reason="needs the parquet extra")
    table = pyarrow.Table.from_pylist(rows)
    if path.suffix == ".parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(table, path, row_group_size=2)
        return path
    path.parent.mkdir(exist_ok=True, parents=True)
    write = pyarrow.ipc.new_file if kind == "file" else pyarrow.ipc.new_stream
    with write(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return path


def compress(name, content):
    if name.endswith(".zst"):
        library = pytest.importorskip("zstandard", reason="needs the zstd extra")
        half = len(content) // 2
        return b"".join(library.ZstdCompressor().compress(part) for part in (content[:half], content[half:]))
    by_suffix = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
    return by_suffix[name[name.rindex(".") :]](content)


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.parquet", "a.arrow", "a.feather"])
def test_a_row_of_a_table_is_a_document(tmp_path, name):
    path = tmp_path / name
    write_csv(path, delimiter="\t" if name == "a.tsv" else ",") if "sv" in name else write_table(path)
    assert documents(tmp_path, path) == TEXTS
    assert documents(tmp_path, path, json_key="number") == ["1", "2", "3"]


JSON_NAMES = ("a.jsonl", "a.JSONL", "a.Jsonl", "a.json", "a.JSON", "a.ndjson", "a.jsonlines", "a.ldjson")


@pytest.mark.parametrize("name", [*JSON_NAMES, "a.ndjson.GZ", "a.JSONL.Bz2", "a.jsonl.gzip", "a.jsonl.zstd"])
def test_json_lines_are_known_by_each_of_their_suffixes_in_any_case(tmp_path, name):
    path = tmp_path / name
    kind = {".gzip": "a.gz", ".zstd": "a.zst"}.get(path.suffix, name.lower())
    path.write_bytes(LINES if name in JSON_NAMES else compress(kind, LINES))
    assert documents(tmp_path, path) == TEXTS
    config = TextCorpusConfig(seq_length=8, sources=[str(path)], validation_fraction=0, test_fraction=0)
    assert [each.text for each in read_documents(read_sources(config)[0], config)] == TEXTS


@pytest.mark.parametrize("name", ["a.CSV", "a.Tsv", "a.PARQUET", "a.Arrow"])
def test_a_suffix_of_a_table_has_any_case(tmp_path, name):
    lower = tmp_path / "lower" / name.lower()
    lower.parent.mkdir()
    write_csv(lower, delimiter="\t" if name == "a.Tsv" else ",") if "sv" in lower.name else write_table(lower)
    path = lower.rename(tmp_path / name)
    assert documents(tmp_path, path) == TEXTS


@pytest.mark.parametrize("name", ["a.txt", "a.log", "a", "a.jsnol", "a.txt.gz"])
def test_json_lines_are_not_trained_on_as_text(tmp_path, name):
    path = tmp_path / "data" / name
    path.parent.mkdir()
    path.write_bytes(compress(name, LINES) if name.endswith(".gz") else LINES)
    message = f"{name}: the first line is a JSON object, but the suffix .* is read as text.*Rename the file to a.jsonl"
    with pytest.raises(BadDocumentError, match=message):
        documents(tmp_path, path)
    for source in (path, path.parent):
        with pytest.raises(BadDocumentError, match=message):
            read_sources(TextCorpusConfig(seq_length=8, sources=[str(source)]))
    path.write_bytes(compress(name, b"\n" + LINES) if name.endswith(".gz") else b"\n" + LINES)
    assert documents(tmp_path, path) == ["\n" + LINES.decode()]


@pytest.mark.parametrize("text", ["{", "{% for x in y %}\n", "{not: json}\n", "[1]\n"])
def test_a_text_that_begins_with_a_brace_is_text(tmp_path, text):
    (tmp_path / "a.txt").write_text(text)
    assert documents(tmp_path, tmp_path / "a.txt") == [text]


def test_a_named_json_file_without_the_key_is_rejected(tmp_path):
    (tmp_path / "a.json").write_text('{"content": "a"}\n')
    config = TextCorpusConfig(seq_length=8, sources=[str(tmp_path / "a.json")])
    with pytest.raises(BadDocumentError, match=r"a.json:1: has no key 'text' \(found keys content\)"):
        list(read_documents(read_sources(config)[0], config))


@pytest.mark.parametrize(
    "content", ['[\n{"text": "a"}\n]\n', '{\n"text": "a"\n}\n', '"a"\n', "words\n", '{"text": ']
)
def test_a_json_file_that_is_no_lines_is_text_in_a_folder_and_rejected_by_name(tmp_path, content):
    """A folder of programs has settings in such files; a file that is named is data."""
    path = tmp_path / "folder" / "a.json"
    path.parent.mkdir()
    path.write_text(content)
    config = TextCorpusConfig(seq_length=8, sources=[str(path)], validation_fraction=0, test_fraction=0)
    with pytest.raises(BadDocumentError, match=r"a\.json:1: is .*; every line must be a JSON object"):
        list(read_documents(read_sources(config)[0], config))
    with pytest.raises(BadDocumentError, match=r"a\.json:1: is .*; every line must be a JSON object"):
        documents(tmp_path, path)
    config.sources = [str(path.parent)]
    assert [each.text for each in read_documents(read_sources(config)[0], config)] == [content]


@pytest.mark.parametrize("value", ["9" * 5000, "[" * 100_000])
def test_a_line_that_the_parser_rejects_is_named(tmp_path, value):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{"id": ' + value)
    with pytest.raises(BadDocumentError, match=r"a\.jsonl:2: is not JSON"):
        documents(tmp_path, tmp_path / "a.jsonl")


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
def test_compressed_lines_tables_and_texts(tmp_path, suffix):
    table = write_csv(tmp_path / "a.csv").read_bytes()
    for name, content in (("a.jsonl", LINES), ("b.csv", table), ("c.txt", b"text")):
        (tmp_path / f"{name}{suffix}").write_bytes(compress(suffix, content))
    assert documents(tmp_path, *sorted(tmp_path.glob(f"*{suffix}"))) == [*TEXTS, *TEXTS, "text"]


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
@pytest.mark.parametrize("content", [None, b"not compressed at all"])
def test_a_truncated_or_other_file_is_named(tmp_path, suffix, content):
    complete = compress(suffix, LINES * 5000)
    (tmp_path / f"a.jsonl{suffix}").write_bytes(content or complete[: len(complete) * 3 // 4])
    with pytest.raises(BadDocumentError, match=rf"a\.jsonl{suffix}: cannot be decompressed"):
        documents(tmp_path, tmp_path / f"a.jsonl{suffix}")


@pytest.mark.parametrize("name", ["a.jsonl", pytest.param("a.jsonl.gz", marks=pytest.mark.slow)])
def test_a_line_that_is_too_long_is_named_before_it_is_read(tmp_path, name):
    with (gzip.open if name.endswith("gz") else open)(tmp_path / name, "wb") as stream:
        stream.write(b'{"text": "first"}\n{"text": "')
        for _ in range(256):
            stream.write(b"x" * (1 << 20))
        stream.write(b'"}\n')
    tracemalloc.start()
    try:
        with pytest.raises(BadDocumentError, match=rf"{name}:2: the line has more than 64 MiB"):
            [rows for chunk in read_chunks([tmp_path / name], chunk_bytes=1) for rows in chunk.objects()]
        assert tracemalloc.get_traced_memory()[1] < 200 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", ["file", "stream"])
def test_a_saved_data_set_is_read_without_its_state(tmp_path, kind):
    root = tmp_path / "saved"
    for number in range(2):
        write_table(root / "train" / f"data-0000{number}-of-00002.arrow", ROWS[number * 2 :][:2], kind=kind)
    write_table(root / "train" / "cache-1234.arrow")
    names = [{"filename": f"data-0000{number}-of-00002.arrow"} for number in range(2)]
    (root / "train" / "state.json").write_text(json.dumps({"_data_files": names}))
    (root / "train" / "dataset_info.json").write_text("{}")
    (root / "dataset_dict.json").write_text('{"splits": ["train"]}')
    assert documents(tmp_path, root) == TEXTS
    assert [path.name for path in input_files([root / "train"])] == [each["filename"] for each in names]
    (root / "train" / "state.json").write_text("[]")
    assert len(input_files([root / "train"])) == 5


def test_large_rows_are_read_in_chunks_of_bounded_size(tmp_path):
    rows = [{"text": f"{number}" * 50_000} for number in range(100)]
    for path in (write_table(tmp_path / "a.parquet", rows), write_csv(tmp_path / "a.csv", rows)):
        chunks = list(read_chunks([path], chunk_bytes=1 << 19))
        assert len(chunks) > 5
        assert [row["text"] for chunk in chunks for row in chunk.documents] == [row["text"] for row in rows]
        assert sum(chunk.read_bytes for chunk in chunks) == path.stat().st_size


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "a,b\n1,2\n", r"a\.csv: has no column 'text' \(found columns a, b\)\. .*--json-key"),
        ("a.csv", "text,b\n1\n", r"a\.csv:2: has 1 values, but the first line names 2 columns"),
        ("a.csv", 'text\n"a\n', r"a\.csv:\d: is not CSV in UTF-8"),
        ("a.parquet", "none", r"a\.parquet: pyarrow cannot read it as \.parquet"),
        ("a.arrow", "none", r"a\.arrow: pyarrow cannot read it as \.arrow"),
        ("a.parquet.gz", "none", r"a\.parquet\.gz: is a compressed \.parquet; .*Decompress the file"),
        ("a.orc", "none", r"a\.orc: \.orc files are not supported; .*Convert it to \.jsonl"),
        ("a.jsonl", '{"body": "a"}', r"a\.jsonl:1: has no key 'text' \(found keys body\)\. .*--json-key"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, name, content, message):
    if "arrow" in name or name == "a.parquet":
        pytest.importorskip("pyarrow", reason="needs the parquet extra")
    (tmp_path / name).write_text(content)
    with pytest.raises(BadDocumentError, match=message):
        documents(tmp_path, tmp_path / name)


def test_columns_and_values_of_a_table_are_checked(tmp_path):
    path = write_table(tmp_path / "a.parquet", [{"text": "a", "count": 1}, {"text": None, "count": 2}])
    with pytest.raises(
        BadDocumentError, match=r"a\.parquet: has no column 'body' \(found columns text, count\)"
    ):
        documents(tmp_path, path, json_key="body")
    with pytest.raises(
        BadDocumentError, match=r"a\.parquet: row 2: the value of 'text' is not a string \(null"
    ):
        documents(tmp_path, path)
    with pytest.raises(
        BadDocumentError, match=r"row 1: the value of 'count' is not a string \(1, of type int"
    ):
        documents(tmp_path, path, json_key="count")


@pytest.mark.parametrize(
    ("name", "module", "extra"),
    [
        ("a.parquet", "pyarrow", "parquet"),
        ("a.arrow", "pyarrow", "parquet"),
        ("a.jsonl.zst", "zstandard", "zstd"),
    ],
)
def test_a_missing_library_is_named_with_its_extra(tmp_path, monkeypatch, name, module, extra):
    (tmp_path / name).touch()
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, "mb_data.text.arrow_tables", raising=False)
    with pytest.raises(
        FormatLibraryError, match=rf'{module} is not installed.*pip install "mb-data\[{extra}\]"'
    ):
        documents(tmp_path, tmp_path / name)


SAMPLES = [{"input": "2+2", "output": "4"}, {"input": "3+3", "output": "6"}]


@pytest.mark.parametrize(
    "name",
    ["training.jsonl", "train.jsonl.gz", "train.jsonl.zst", "train.csv", "training.parquet", "train.arrow"],
)
def test_samples_of_every_format_are_the_same(tmp_path, name):
    path = tmp_path / name
    if name.endswith("csv"):
        write_csv(path, SAMPLES)
    elif "json" in name:
        content = "".join(json.dumps(row) + "\n" for row in SAMPLES).encode()
        path.write_bytes(content if name.endswith("jsonl") else compress(name, content))
    else:
        write_table(path, SAMPLES)
    config = FinetuningDatasetConfig(64, dataset_root=str(tmp_path), cache_dir=str(tmp_path / "cache"))
    found = tokenize_samples(sample_files(config, "training")[0], config=config, tokenizer=ByteTokenizer())
    assert ByteTokenizer().decode(found.tokens.tolist()) == "2+2 43+3 6"


def test_samples_of_a_saved_data_set(tmp_path):
    write_table(
        tmp_path / "train" / "data-00000-of-00001.arrow",
        [
            {
                "messages": [
                    {"role": "user", "content": "Hi", "name": None},
                    {"role": "assistant", "content": "Hello", "name": None},
                ]
            }
        ],
        kind="stream",
    )
    state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}
    (tmp_path / "train" / "state.json").write_text(json.dumps(state))
    (tmp_path / "train" / "dataset_info.json").write_text("{}")
    config = FinetuningDatasetConfig(64, dataset_root=str(tmp_path), cache_dir=str(tmp_path / "cache"))
    found = tokenize_samples(sample_files(config, "training")[0], config=config, tokenizer=ByteTokenizer())
    assert ByteTokenizer().decode(found.tokens.tolist()) == "user: Hi\nassistant: Hello"


def test_files_of_samples_are_unambiguous(tmp_path):
    config = FinetuningDatasetConfig(64, dataset_root=str(tmp_path))
    with pytest.raises(DataPathError, match=r"training\.jsonl does not exist"):
        sample_files(config, "training")
    for name in ("training.jsonl", "train.csv", "train.txt"):
        (tmp_path / name).touch()
    with pytest.raises(DataPathError, match=r"train\.csv and .*training\.jsonl exist"):
        sample_files(config, "training")
    with pytest.raises(BadDocumentError, match=r"train\.txt: is neither JSON lines nor a table"):
        tokenize_samples(tmp_path / "train.txt", config=config, tokenizer=ByteTokenizer())
