import gzip
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mb_data import (
    ByteTokenizer,
    TextCorpusConfig,
    load_tokenizer,
    prepare_corpus,
    tokenize_corpus,
    verify_prefix,
)
from mb_data.build_cache import commit_build, resolve_cache_dir
from mb_data.errors import BadDocumentError, CorpusError
from mb_data.text.corpus import _load, fingerprint
from mb_data.text.sources import read_documents, read_sources, split_documents, verify_sources

pytest.importorskip("tokenizers", reason="needs the tokenizers extra")

SPLITS = ("train", "valid", "test")


@pytest.fixture
def config(text_folder, tmp_path):
    return TextCorpusConfig(
        seq_length=16,
        sources=[str(text_folder)],
        vocab_size=280,
        cache_dir=str(tmp_path / "cache"),
        validation_fraction=0.2,
        test_fraction=0.2,
    )


def test_every_file_is_a_document_of_exactly_one_split(config, text_folder):
    corpus = prepare_corpus(config)
    prefixes = {"train": corpus.train, "valid": corpus.valid, "test": corpus.test}
    summaries = {split: verify_prefix(prefix) for split, prefix in prefixes.items()}
    assert {split: summary.tokens for split, summary in summaries.items()} == corpus.tokens
    assert {split: summary.documents for split, summary in summaries.items()} | {"skipped": 1} == corpus.files
    tokenizer = load_tokenizer(corpus.tokenizer)
    texts = [
        text
        for prefix in prefixes.values()
        for text in tokenizer.decode(np.fromfile(f"{prefix}.bin", np.uint16)).split("<|endoftext|>")
        if text
    ]
    assert sorted(texts) == sorted(path.read_text() for path in text_folder.glob("*/*.txt"))


def test_a_second_call_loads_it(config):
    first = prepare_corpus(config)
    seen = []
    second = prepare_corpus(config, progress=lambda *step: seen.append(step))
    assert (second.train, first.reused, second.reused, seen) == (first.train, False, True, [])


def text_of(tokenizer, prefix):
    return tokenizer.decode(np.fromfile(f"{prefix}.bin", np.uint16))


def test_a_given_tokenizer_is_used_although_another_corpus_is_cached(config):
    own, given = prepare_corpus(config), tokenize_corpus(config, ByteTokenizer())
    tokenizer = load_tokenizer(own.tokenizer)
    assert (given.reused, given.files) == (False, own.files)
    assert text_of(ByteTokenizer(), given.test) == text_of(tokenizer, own.test).replace("<|endoftext|>", "")
    assert (tokenize_corpus(config, ByteTokenizer()).reused, prepare_corpus(config).reused) == (True, True)


def test_a_copy_of_its_tokenizer_loads_it(config, tmp_path):
    own = prepare_corpus(config)
    copy = tmp_path / "copy.json"
    copy.write_bytes(own.tokenizer.read_bytes())
    assert tokenize_corpus(config, load_tokenizer(copy)).train == own.train


def test_progress_names_the_stages(config):
    seen = []
    prepare_corpus(config, progress=lambda *step: seen.append(step))
    assert {stage for stage, _, _ in seen} == {"train tokenizer", "tokenize"}
    assert seen[-1] == ("tokenize", 40, 40)


def change_content(config, folder):
    (folder / "one" / "00.txt").write_text("changed")


def change_name(config, folder):
    (folder / "one" / "00.txt").rename(folder / "one" / "renamed.txt")


def change_vocabulary(config, folder):
    config.vocab_size = 281


def change_seed(config, folder):
    config.split_seed = 2


def change_fraction(config, folder):
    config.test_fraction = 0.25


@pytest.mark.parametrize(
    "change", [change_content, change_name, change_vocabulary, change_seed, change_fraction]
)
def test_a_change_creates_another_corpus(config, text_folder, change):
    before = fingerprint(read_sources(config)[0], config)
    change(config, text_folder)
    assert fingerprint(read_sources(config)[0], config) != before


def test_a_byte_order_mark_is_no_part_of_a_document(config, text_folder):
    mark = b"\xef\xbb\xbf"
    (text_folder / "marked.txt").write_bytes(mark + b"to be")
    (text_folder / "marked.csv").write_bytes(mark + b"text,source\nor not,play\n")
    (text_folder / "only.txt").write_bytes(mark)
    files, _ = read_sources(config)
    texts = {document.name: document.text for document in read_documents(files, config)}
    marked = {name: text for name, text in texts.items() if "marked" in name or "only" in name}
    assert marked == {
        f"{text_folder.name}/marked.txt": "to be",
        f"{text_folder.name}/marked.csv:1": "or not",
    }


def test_a_moved_folder_is_the_same_corpus(config, text_folder, tmp_path):
    before = fingerprint(read_sources(config)[0], config)
    (tmp_path / "elsewhere").mkdir()
    text_folder.rename(tmp_path / "elsewhere" / "text")
    config.sources = [str(tmp_path / "elsewhere" / "text")]
    assert fingerprint(read_sources(config)[0], config) == before


def test_a_new_file_does_not_change_the_split_of_others(config, text_folder):
    def splits():
        files, _ = read_sources(config)
        found = split_documents(files, config)
        return {document.name: found.split(document.name) for document in read_documents(files, config)}

    before = splits()
    (text_folder / "new.txt").write_text("new")
    assert splits().items() > before.items()


@pytest.mark.parametrize("damage", ["train.idx", "tokenizer.json", "corpus.json"])
def test_a_damaged_corpus_is_rebuilt(config, damage):
    folder = Path(prepare_corpus(config).train).parent
    (folder / damage).unlink()
    assert prepare_corpus(config).reused is False
    assert prepare_corpus(config).reused is True


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"files": {"train": 0, "valid": 0, "test": 0}, "tokens": {}}']
)
def test_a_corpus_with_a_damaged_record_is_rebuilt(config, text):
    record = Path(prepare_corpus(config).train).parent / "corpus.json"
    record.write_text(text)
    assert prepare_corpus(config).reused is False


def test_a_failed_build_leaves_no_files(config, tmp_path):
    config.vocab_size = 100_000
    with pytest.raises(ValueError, match="vocab_size"):
        prepare_corpus(config)
    assert list((tmp_path / "cache" / "corpora").iterdir()) == []


PREPARE = """
import sys
from mb_data import TextCorpusConfig, prepare_corpus
corpus = prepare_corpus(TextCorpusConfig(
    seq_length=16, sources=[sys.argv[1]], vocab_size=280, cache_dir=sys.argv[2], validation_fraction=0.2,
    test_fraction=0.2))
print(corpus.train)
"""


def test_a_corpus_that_loses_a_file_during_its_build_is_rejected(config, tmp_path):
    def lose(stage, done, total):
        for file in (tmp_path / "cache").rglob("tokenizer.json") if done == total else ():
            file.unlink()

    with pytest.raises(CorpusError, match="was changed while it was being built"):
        prepare_corpus(config, progress=lose)


def test_a_build_that_cannot_be_renamed_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        commit_build(tmp_path / "building", tmp_path / "corpus", load=_load)


def test_two_concurrent_processes_both_succeed(text_folder, tmp_path):
    command = [sys.executable, "-c", PREPARE, str(text_folder), str(tmp_path / "cache")]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    trains = {process.communicate()[0].strip() for process in processes}
    assert [process.returncode for process in processes] == [0, 0]
    (train,) = trains
    assert verify_prefix(train).documents > 0
    assert list((tmp_path / "cache" / "corpora").iterdir()) == [Path(train).parent]


def test_the_remains_of_a_killed_build_are_not_read(config):
    corpus = prepare_corpus(config)
    folder = Path(corpus.train).parent
    folder.rename(folder.with_name(f".building-{folder.name}-x"))
    (folder.with_name(f".building-{folder.name}-x") / "test.idx").unlink()
    assert prepare_corpus(config).reused is False


def test_a_fraction_of_zero_means_no_such_split(config):
    config.test_fraction = 0.0
    corpus = prepare_corpus(config)
    assert (corpus.test, corpus.tokens["test"]) == (None, 0)


def test_a_split_without_a_file_is_rejected(config, tmp_path):
    (tmp_path / "single.txt").write_text("alone")
    config.sources = [str(tmp_path / "single.txt")]
    for refusing in (prepare_corpus, verify_sources):
        with pytest.raises(CorpusError, match=r"1 document\(s\) are too few for train, valid and test"):
            refusing(config)


def test_missing_and_empty_sources_are_rejected(config, tmp_path):
    (tmp_path / "empty").mkdir()
    for refusing in (prepare_corpus, verify_sources):
        config.sources = [str(tmp_path / "none")]
        with pytest.raises(FileNotFoundError, match=r"dataset\.sources"):
            refusing(config)
        config.sources = [str(tmp_path / "empty")]
        with pytest.raises(CorpusError, match="contain no text"):
            refusing(config)


def test_sources_are_checked_before_a_corpus_is_built(config, tmp_path):
    for name in "abc":
        (tmp_path / name).write_text("text")
    config.sources = [str(tmp_path / name) for name in "abc"]
    verify_sources(config)
    config.sources = [*config.sources, str(tmp_path / "d")]
    with pytest.raises(FileNotFoundError, match=r"dataset\.sources: .*/d does not exist"):
        verify_sources(config)


def test_the_standard_library_is_found_without_its_tests():
    files, _ = read_sources(TextCorpusConfig(seq_length=16))
    names = {file.name for file in files}
    folders = {part for name in names for part in name.split("/")[:-1]}
    assert {"argparse.py", "json/decoder.py"} <= names
    assert folders & {"test", "tests", "site-packages", "lib2to3"} == set()


def test_the_cache_folder():
    assert resolve_cache_dir("/a", environment={"MB_CACHE_DIR": "/b"}) == Path("/a")
    assert resolve_cache_dir(None, environment={"MB_CACHE_DIR": "/b"}) == Path("/b")
    assert resolve_cache_dir(None, environment={}) == Path.home() / ".cache" / "mb-trainer"


def test_three_files_are_enough_for_three_splits(config, tmp_path):
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(name)
    config.sources = [str(tmp_path / f"{name}.txt") for name in "abc"]
    found = split_documents(read_sources(config)[0], config)
    assert sorted(map(found.split, ("a.txt", "b.txt", "c.txt"))) == ["test", "train", "valid"]


@pytest.mark.parametrize("names", ["xxyz", "xyxz", "zyxx"])
def test_documents_of_the_same_name_leave_no_split_empty(config, tmp_path, names):
    for number, name in enumerate(names):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / name).write_text(f"{number}")
    config.sources = [str(tmp_path / str(number) / name) for number, name in enumerate(names)]
    found = split_documents(read_sources(config)[0], config)
    assert sorted(map(found.split, "xyz")) == ["test", "train", "valid"]
    config.sources = [source for source in config.sources if not source.endswith("z")]
    with pytest.raises(
        CorpusError, match=r"2 document\(s\) are too few .* of the same name are in one split"
    ):
        split_documents(read_sources(config)[0], config)


LINES = [f"line {number}: {'to be or not to be ' * 4}" for number in range(40)]


def write_rows(folder, suffix):
    """Write the lines in a format, and a text file next to them. Return the key of the text."""
    file = folder / f"a{suffix}"
    if suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow", reason="needs the parquet extra")
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.table({"body": LINES, "other": LINES[::-1]}), file)
    elif suffix == ".csv":
        file.write_text("other,body\n" + "".join(f"x,{line}\n" for line in LINES))
    else:
        content = "".join(json.dumps({"body": line}) + "\n" for line in LINES).encode()
        file.write_bytes(gzip.compress(content) if suffix.endswith(".gz") else content)
    (folder / "b.json").write_text(
        json.dumps({"a": "settings of a program, not a document of lines"}, indent=1)
    )
    return "body"


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".jsonl.gz", ".csv", ".parquet"])
def test_every_line_or_row_is_a_document(config, tmp_path, suffix):
    (tmp_path / "rows").mkdir()
    config.json_key = write_rows(tmp_path / "rows", suffix)
    config.sources = [str(tmp_path / "rows")]
    verify_sources(config)
    corpus = prepare_corpus(config)
    tokenizer = load_tokenizer(corpus.tokenizer)
    texts = [
        text
        for prefix in (corpus.train, corpus.valid, corpus.test)
        for text in tokenizer.decode(np.fromfile(f"{prefix}.bin", np.uint16)).split("<|endoftext|>")
        if text
    ]
    assert sorted(texts) == sorted([*LINES, (tmp_path / "rows" / "b.json").read_text()])
    assert min(corpus.files[split] for split in SPLITS) >= 1
    assert prepare_corpus(config).reused


@pytest.mark.parametrize("name", ["events.jsonl", "table.csv"])
def test_other_lines_in_a_folder_are_text(config, tmp_path, name):
    folder = tmp_path / "programs"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.py").write_text(f"print({number})")
    (folder / name).write_text('{"event": 1}\n{"event": 2}\n' if name.endswith("jsonl") else "a,b\n1,2\n")
    config.sources = [str(folder)]
    assert sum(tokenize_corpus(config, ByteTokenizer()).files.values()) == 4
    config.sources = [str(folder / name)]
    with pytest.raises(BadDocumentError, match=r"has no (key|column) 'text'"):
        tokenize_corpus(config, ByteTokenizer())


def test_another_key_of_the_text_is_another_corpus(config, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"text": "a", "body": "b"}\n' * 3)
    config.sources = [str(tmp_path / "rows.jsonl")]
    first = tokenize_corpus(config, ByteTokenizer())
    config.json_key = "body"
    assert tokenize_corpus(config, ByteTokenizer()).train != first.train
    config.json_key = "none"
    with pytest.raises(BadDocumentError, match=r"rows.jsonl:1: has no key 'none' \(found keys text, body\)"):
        tokenize_corpus(config, ByteTokenizer())


def test_lines_may_be_too_few_for_the_splits(config, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n\n{"text": "b"}\n')
    config.sources = [str(tmp_path / "rows.jsonl")]
    with pytest.raises(CorpusError, match=r"2 document\(s\) are too few for train, valid and test"):
        tokenize_corpus(config, ByteTokenizer())


def test_a_format_that_cannot_be_read_is_named(config, tmp_path):
    (tmp_path / "rows.zip").write_bytes(b"PK")
    config.sources = [str(tmp_path / "rows.zip")]
    for refusing in (prepare_corpus, verify_sources):
        with pytest.raises(BadDocumentError, match=r"rows.zip: .zip files are not supported"):
            refusing(config)
