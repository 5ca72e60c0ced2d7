import gzip
import json
from datetime import date
from decimal import Decimal

import numpy as np
import pytest

from mb_data import BadDocumentError, ByteTokenizer, build_indexed
from mb_data.errors import CorpusError
from mb_data.text.documents import read_chunks

END = ByteTokenizer.eod


def tokens_of(prefix):
    return np.fromfile(f"{prefix}.bin", np.uint16).tolist()


def write_lines(path, records):
    content = "".join(json.dumps(record) + "\n" for record in records).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def test_a_file_is_a_document_and_a_folder_its_files_in_order(tmp_path):
    (tmp_path / "in" / "sub").mkdir(parents=True)
    (tmp_path / "in" / "b.txt").write_text("b")
    (tmp_path / "in" / "sub" / "a.txt").write_text("aa")
    (tmp_path / "in" / ".hidden").write_text("x")
    (tmp_path / "in" / "empty.txt").write_text("")
    summary = build_indexed([tmp_path / "in"], tokenizer=ByteTokenizer(), prefix=tmp_path / "made" / "out")
    assert tokens_of(tmp_path / "made" / "out") == [98, END, 97, 97, END]
    assert (summary.documents, summary.tokens) == (2, 5)


@pytest.mark.parametrize("name", ["in.jsonl", "in.json", "in.jsonl.gz"])
def test_a_line_is_a_document(tmp_path, name):
    lines = write_lines(tmp_path / name, [{"text": "a"}, {"text": ""}, {"text": "bc"}])
    build_indexed([lines], tokenizer=ByteTokenizer(), prefix=tmp_path / "out")
    assert tokens_of(tmp_path / "out") == [97, END, 98, 99, END]


def test_another_key_and_no_end_of_document(tmp_path):
    lines = write_lines(tmp_path / "in.jsonl", [{"body": "ab"}])
    build_indexed(
        [lines], tokenizer=ByteTokenizer(), prefix=tmp_path / "out", json_key="body", append_eod=False
    )
    assert tokens_of(tmp_path / "out") == [97, 98]


def test_the_result_does_not_depend_on_the_number_of_workers(tmp_path):
    lines = write_lines(tmp_path / "in.jsonl", [{"text": f"{number} " * 2000} for number in range(300)])
    for workers in (1, 2):
        build_indexed([lines], tokenizer=ByteTokenizer(), prefix=tmp_path / f"out{workers}", workers=workers)
    assert len(list(read_chunks([lines]))) > 2
    for suffix in ("bin", "idx"):
        assert (tmp_path / f"out1.{suffix}").read_bytes() == (tmp_path / f"out2.{suffix}").read_bytes()


@pytest.mark.parametrize("name", ["in.jsonl", "in.jsonl.gz"])
def test_progress_ends_at_the_size_of_the_input(tmp_path, name):
    seen = []
    lines = write_lines(tmp_path / name, [{"text": "a" * 1000}] * 3000)
    build_indexed(
        [lines], tokenizer=ByteTokenizer(), prefix=tmp_path / "out", progress=lambda *step: seen.append(step)
    )
    size = lines.stat().st_size
    assert len(seen) > 2
    assert seen[-1] == ("tokenize", size, size)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{not json", r"in\.jsonl:3: is not JSON"),
        (b'{"body": "x"}', r"in\.jsonl:3: has no key 'text' \(found keys body\)"),
        (b'{"text": 7}', r"in\.jsonl:3: the value of 'text' is not a string \(7, of type int\)"),
        (b'{"text": null}', r"in\.jsonl:3: the value of 'text' is not a string \(null, of type NoneType\)"),
        (
            b'{"text": ["a long text in a list, which no reader finishes"]}',
            r"is not a string \(\[.{39}\.\.\., of type list",
        ),
        (b"[1]", r"in\.jsonl:3: is a list; every line must be a JSON object"),
        (b'{"text": "ab\\ud83d"}', r"in\.jsonl:3: has an unpaired surrogate \(surrogates not allowed at 2\)"),
        (b"\xff", r"in\.jsonl:3: is not UTF-8"),
    ],
)
def test_a_bad_line_is_named_and_no_file_remains(tmp_path, line, message):
    lines = tmp_path / "in.jsonl"
    lines.write_bytes(b'{"text": "a"}\n\n' + line + b"\n")
    with pytest.raises(BadDocumentError, match=message):
        build_indexed([lines], tokenizer=ByteTokenizer(), prefix=tmp_path / "out")
    assert list(tmp_path.iterdir()) == [lines]


@pytest.mark.parametrize(
    ("name", "content"), [("a.txt", ""), ("a.jsonl", "\n\n"), ("a.jsonl", '{"text": ""}\n')]
)
def test_input_without_text_is_rejected_and_nothing_is_built(tmp_path, name, content):
    source = tmp_path / name
    source.write_text(content)
    with pytest.raises(CorpusError, match="contains no text") as rejected:
        build_indexed([source], tokenizer=ByteTokenizer(), prefix=tmp_path / "out")
    assert str(source) in str(rejected.value)
    assert list(tmp_path.iterdir()) == [source]


def test_a_bad_line_is_named_by_workers_too(tmp_path):
    lines = tmp_path / "in.jsonl"
    lines.write_bytes(b'{"text": "a"}\n{not json\n')
    with pytest.raises(BadDocumentError, match=r"in\.jsonl:2"):
        build_indexed([lines], tokenizer=ByteTokenizer(), prefix=tmp_path / "out", workers=2)
    assert list(tmp_path.iterdir()) == [lines]


@pytest.mark.parametrize("content", [b"no gzip at all", gzip.compress(b'{"text": "a"}\n' * 99)[:-12]])
def test_a_broken_archive_is_named(tmp_path, content):
    (tmp_path / "in.jsonl.gz").write_bytes(content)
    with pytest.raises(BadDocumentError, match=r"in\.jsonl\.gz: cannot be decompressed"):
        build_indexed([tmp_path / "in.jsonl.gz"], tokenizer=ByteTokenizer(), prefix=tmp_path / "out")


def test_missing_and_empty_inputs(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file or folder"):
        build_indexed([tmp_path / "none"], tokenizer=ByteTokenizer(), prefix=tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="nothing to tokenize"):
        build_indexed([tmp_path / "empty"], tokenizer=ByteTokenizer(), prefix=tmp_path / "out")


class Ending(ByteTokenizer):
    """A tokenizer whose post-processor ends each text."""

    def encode(self, text):
        return [*super().encode(text), self.eod]


def test_a_document_ends_once(tmp_path):
    lines = write_lines(tmp_path / "in.jsonl", [{"text": "a"}, {"text": "b"}])
    build_indexed([lines], tokenizer=Ending(), prefix=tmp_path / "out")
    assert tokens_of(tmp_path / "out") == [97, END, 98, END]


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path):
    lines = tmp_path / "in.jsonl"
    lines.write_bytes(b"\xef\xbb\xbf" + b'{"text": "a"}\n{"text": "b"}\n')
    build_indexed([lines], tokenizer=ByteTokenizer(), prefix=tmp_path / "out")
    assert tokens_of(tmp_path / "out") == [97, END, 98, END]


def test_a_byte_order_mark_is_no_part_of_a_text_file(tmp_path):
    text = tmp_path / "in.txt"
    text.write_text("ab", encoding="utf-8-sig")
    build_indexed([text], tokenizer=ByteTokenizer(), prefix=tmp_path / "out")
    assert tokens_of(tmp_path / "out") == [97, 98, END]


@pytest.mark.parametrize("value", [b"ab", date(2024, 5, 1), Decimal("1.5"), {"inner": b"x"}, 3])
def test_a_column_of_a_table_that_is_no_text_is_named(tmp_path, value):
    pyarrow = pytest.importorskip("pyarrow", reason="needs the parquet extra")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"text": [value]}), tmp_path / "a.parquet")
    with pytest.raises(BadDocumentError, match=r"a\.parquet: row 1: the value of 'text' is not a string \("):
        build_indexed([tmp_path / "a.parquet"], tokenizer=ByteTokenizer(), prefix=tmp_path / "out")
