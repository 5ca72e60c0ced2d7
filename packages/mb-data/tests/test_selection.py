import json

import pytest

from mb_data import ByteTokenizer, IndexedReader
from mb_data.errors import BadDocumentError, DocumentFunctionError
from mb_data.text.build import build_pair
from mb_data.text.selection import Selection


@pytest.fixture
def rows(tmp_path):
    """JSON lines with a text, a body and a score."""
    path = tmp_path / "a.jsonl"
    values = [{"text": "a" * size, "body": f"body {size}", "score": size / 10} for size in range(8)]
    path.write_text("".join(json.dumps(row) + "\n" for row in values))
    return path


def texts_of(prefix):
    reader, tokenizer = IndexedReader(prefix), ByteTokenizer()
    return [tokenizer.decode(reader.document(number)[:-1].tolist()) for number in range(len(reader))]


def build(inputs, *, workers=1, **options):
    prefix = inputs.parent / "out"
    report = build_pair(
        [inputs], tokenizer=ByteTokenizer(), prefix=prefix, workers=workers, selection=Selection(**options)
    )
    return texts_of(prefix), report.selection


def program(rows, body):
    path = rows.parent / "mine.py"
    path.write_text(body)
    return str(path)


def test_limits_of_the_length_are_counted(rows):
    texts, counts = build(rows, min_characters=2, max_characters=4)
    assert texts == ["aa", "aaa", "aaaa"]
    assert counts.documents == {"shorter than 2 characters": 1, "kept": 3, "longer than 4 characters": 3}
    assert counts.samples == {
        "shorter than 2 characters": ["a"],
        "kept": texts,
        "longer than 4 characters": ["a" * 5, "a" * 6, "a" * 7],
    }


@pytest.mark.parametrize("workers", [1, 2])
def test_functions_of_the_user_see_the_row(rows, workers):
    file = program(
        rows, "def keep(row): return row['score'] > 0.5\ndef text(row): return row['body'].upper()\n"
    )
    texts, counts = build(rows, workers=workers, filter_function=f"{file}:keep", text_function=f"{file}:text")
    assert texts == ["BODY 6", "BODY 7"]
    assert counts.documents == {f"rejected by {file}:keep": 6, "kept": 2}


def test_functions_see_columns_of_tables_and_texts_of_files(rows):
    file = program(
        rows,
        "def keep(row): return len(row['text']) > 3\ndef text(row): return row.get('b', '') + row['text']\n",
    )
    options = {"filter_function": f"{file}:keep", "text_function": f"{file}:text"}
    table, text = rows.parent / "in" / "a.csv", rows.parent / "in" / "b.txt"
    table.parent.mkdir()
    table.write_text("text,b\nlong,x\nno,y\n")
    text.write_text("a file")
    assert build(table.parent, **options)[0] == ["xlong", "a file"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{broken", "is not JSON"),
        (b'{"body": 1}', "has no key 'text'"),
        (b'{"text": 7}', "is not a string"),
        (b'{"text": "\xff"}', "is not UTF-8"),
        (b'{"text": "\\ud800"}', "unpaired surrogate"),
        (b'{"text": ' + b"[" * 100_000, "is not JSON"),
        (b'{"text": ' + b"9" * 5000 + b"}", "is not JSON"),
        (b'{"text": "' + b"x" * (1 << 26) + b'"}', "has more than 64 MiB"),
    ],
    ids=["json", "key", "type", "encoding", "surrogate", "nesting", "digits", "length"],
)
def test_a_bad_line_stops_the_build_or_is_counted(tmp_path, line, message):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "first"}\n' + line + b'\n{"text": "last"}\n')
    with pytest.raises(BadDocumentError, match=rf"a\.jsonl:2: .*{message}"):
        build(path)
    texts, counts = build(path, bad_lines="skip")
    assert texts == ["first", "last"]
    assert counts.documents == {"kept": 2, "bad line": 1}
    assert "a.jsonl:2: " in counts.bad_lines[0]
    assert list(counts.samples) == ["kept"]


def test_a_file_that_is_no_text_is_skipped_on_request(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.txt").write_bytes(b"\xff\xfe")
    (folder / "b.txt").write_text("text")
    assert build(folder, bad_lines="skip")[0] == ["text"]


def test_only_the_first_of_equal_texts_is_kept(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"text": "{text}"}}\n' for text in "abacb"))
    texts, counts = build(path, deduplicate=True)
    assert texts == ["a", "b", "c"]
    assert counts.documents == {"kept": 3, "duplicate": 2}
    assert counts.samples["duplicate"] == ["a", "b"]


@pytest.mark.parametrize(
    ("body", "name", "message"),
    [
        ("def keep(row): return row['other']", "keep", "a.jsonl:1: .*mine.py:keep raised KeyError: 'other'"),
        ("def keep(row): return None", "keep", "returned None, of type NoneType; it must return a bool"),
        ("keep = 1", "keep", "has no function 'keep'"),
        ("import nothing_like_that", "keep", "mine.py raised ModuleNotFoundError"),
    ],
)
def test_a_function_that_fails_is_named(rows, body, name, message):
    file = program(rows, body)
    with pytest.raises(DocumentFunctionError, match=message):
        build(rows, filter_function=f"{file}:{name}", bad_lines="skip")


def test_a_function_that_is_not_there(rows):
    with pytest.raises(DocumentFunctionError, match=r"none\.py:keep: no such file as none\.py"):
        build(rows, filter_function="none.py:keep")
    (rows.parent / "mine.txt").write_text("")
    with pytest.raises(DocumentFunctionError, match=r"is not a Python file"):
        build(rows, filter_function=f"{rows.parent / 'mine.txt'}:keep")
