import struct
from pathlib import Path

import numpy as np
import pytest

from mb_data import DataPathError, IndexedFormatError, IndexedSummary, IndexedWriter, verify_prefix
from mb_data.config import GPTDatasetConfig
from mb_data.data_checks import verify_dataset_files
from mb_data.text.indexed import sequence_lengths, token_dtype


def test_the_bytes_of_a_small_pair(tmp_path):
    with IndexedWriter(tmp_path / "pair", dtype=np.uint16) as writer:
        writer.add_document([1, 2, 3])
        writer.add_document([4])
    assert (tmp_path / "pair.bin").read_bytes() == struct.pack("<4H", 1, 2, 3, 4)
    assert (tmp_path / "pair.idx").read_bytes() == b"MMIDIDX\0\0" + struct.pack(
        "<QBQQ 2i 2q 3q".replace(" ", ""), 1, 8, 2, 3, 3, 1, 0, 6, 0, 1, 2
    )
    complete = IndexedSummary(documents=2, sequences=2, tokens=4, dtype="uint16", bytes=8 + 34 + 8 + 16 + 24)
    assert writer.summary == verify_prefix(tmp_path / "pair") == complete


def test_an_empty_pair_is_valid(tmp_path):
    with IndexedWriter(tmp_path / "pair", dtype="int32") as writer:
        pass
    assert verify_prefix(tmp_path / "pair") == writer.summary


def test_an_exception_leaves_no_files(tmp_path):
    with (
        pytest.raises(ValueError, match="do not fit"),
        IndexedWriter(tmp_path / "pair", dtype="uint16") as writer,
    ):
        writer.add_document([70000])
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_replacement_leaves_no_index_of_other_tokens(tmp_path, monkeypatch):
    with IndexedWriter(tmp_path / "pair", dtype="uint16") as writer:
        writer.add_document([1, 2])
    replace = Path.replace

    def interrupted(path, target):
        if target.suffix == ".idx":
            raise KeyboardInterrupt
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt), IndexedWriter(tmp_path / "pair", dtype="uint16") as writer:
        writer.add_document([3, 4])
    with pytest.raises(DataPathError, match=r"pair.bin exists, but pair.idx does not"):
        verify_prefix(tmp_path / "pair")


@pytest.mark.parametrize("tokens", [[1.5], [1, float("nan")], [True]])
def test_ids_that_are_no_integers_are_rejected(tmp_path, tokens):
    with (
        pytest.raises(
            ValueError, match=r"pair.bin: token ids are (float64|bool), and uint16 would change them"
        ),
        IndexedWriter(tmp_path / "pair", dtype="uint16") as writer,
    ):
        writer.add_document(tokens)


@pytest.mark.parametrize("tokens", [[70000], [-1]])
def test_ids_that_would_overflow_are_rejected(tmp_path, tokens):
    with (
        pytest.raises(ValueError, match="do not fit uint16"),
        IndexedWriter(tmp_path / "p", dtype="uint16") as w,
    ):
        w.add_document(tokens)


def test_lengths_must_match_the_tokens(tmp_path):
    with (
        pytest.raises(ValueError, match="sum to 3"),
        IndexedWriter(tmp_path / "p", dtype="uint16") as writer,
    ):
        writer.add_documents(np.arange(4), lengths=[1, 2])


def test_a_type_without_a_code_is_rejected(tmp_path):
    with pytest.raises(ValueError, match="no token type complex128"):
        IndexedWriter(tmp_path / "pair", dtype=complex)


def test_the_smallest_type_for_a_vocabulary():
    assert [token_dtype(size).name for size in (4096, 65536, 65537)] == ["uint16", "uint16", "int32"]


class TestMissing:
    def test_a_wrong_name_lists_the_nearest(self, prefix):
        with pytest.raises(DataPathError, match="contains pair"):
            verify_prefix(prefix.replace("pair", "pear"))

    def test_a_wrong_folder_names_the_nearest(self, tmp_path):
        with pytest.raises(DataPathError, match=rf"the nearest existing parent is {tmp_path}\."):
            verify_prefix(tmp_path / "no" / "such" / "pair")

    def test_a_folder_without_data(self, tmp_path):
        with pytest.raises(FileNotFoundError, match=r"contains no \.idx file"):
            verify_prefix(tmp_path / "pair")

    def test_one_error_names_all_pairs_of_a_blend(self, prefix, tmp_path):
        wrong = [str(tmp_path / name) for name in ("a", "b", "c")]
        (tmp_path / "c.idx").touch()
        section = GPTDatasetConfig(seq_length=8, blend=([wrong[0], prefix, *wrong[1:], wrong[0]], None))
        with pytest.raises(DataPathError) as error:
            verify_dataset_files(section, evaluated=False)
        assert str(error.value).startswith(f"{wrong[0]}: no such .bin/.idx pair; ")
        assert str(error.value).endswith(f" 2 more cannot be read: {wrong[1]}, {wrong[2]}.")
        section.blend = None
        section.blend_per_split = [([prefix], None), ([wrong[1]], None), None]
        with pytest.raises(DataPathError, match=f"^{wrong[1]}: no such .bin/.idx pair;"):
            verify_dataset_files(section, evaluated=False)

    def test_a_suffix_is_explained(self, prefix):
        with pytest.raises(DataPathError, match=rf"Use {prefix}\."):
            verify_prefix(f"{prefix}.bin")

    def test_a_folder_is_not_a_prefix(self, prefix, tmp_path):
        with pytest.raises(
            DataPathError, match=rf"this is a folder, and a data path is a prefix\. Use {prefix}\."
        ):
            verify_prefix(tmp_path)
        (tmp_path / "empty").mkdir()
        with pytest.raises(DataPathError, match=r"Use the prefix of a pair\."):
            verify_prefix(tmp_path / "empty")

    @pytest.mark.parametrize(("removed", "left"), [(".idx", "pair.bin"), (".bin", "pair.idx")])
    def test_half_a_pair(self, prefix, tmp_path, removed, left):
        (tmp_path / f"pair{removed}").unlink()
        with pytest.raises(DataPathError, match=f"{left} exists, but pair{removed} does not"):
            verify_prefix(prefix)


class TestDamaged:
    @pytest.mark.parametrize(
        ("offset", "value", "message"),
        [
            (0, b"XX", "begins with b'XX"),
            (9, struct.pack("<Q", 2), "version 2"),
            (17, b"\x09", "type code 9"),
            (26, struct.pack("<Q", 0), "0 document boundaries"),
            (18, struct.pack("<Q", 99), "99 sequences"),
        ],
    )
    def test_a_wrong_header(self, prefix, tmp_path, offset, value, message):
        content = bytearray((tmp_path / "pair.idx").read_bytes())
        content[offset : offset + len(value)] = value
        (tmp_path / "pair.idx").write_bytes(content)
        with pytest.raises(IndexedFormatError, match=message):
            verify_prefix(prefix)

    def test_a_wrong_last_boundary(self, prefix, tmp_path):
        content = (tmp_path / "pair.idx").read_bytes()
        (tmp_path / "pair.idx").write_bytes(content[:-8] + struct.pack("<q", 7))
        with pytest.raises(IndexedFormatError, match="ends at sequence 7 of 100"):
            verify_prefix(prefix)

    @pytest.mark.parametrize(
        ("size", "needed"),
        [(0, "header of an index has 34"), (10, "header of an index has 34"), (500, "need 2042")],
    )
    def test_a_truncated_index(self, prefix, tmp_path, size, needed):
        content = (tmp_path / "pair.idx").read_bytes()
        (tmp_path / "pair.idx").write_bytes(content[:size])
        with pytest.raises(
            IndexedFormatError, match=rf"pair\.idx: {size} bytes, but .* {needed}; .* truncated"
        ):
            verify_prefix(prefix)

    @pytest.mark.parametrize("size", [2198, 2202])
    def test_tokens_that_are_too_few_or_too_many(self, prefix, tmp_path, size):
        content = (tmp_path / "pair.bin").read_bytes()
        (tmp_path / "pair.bin").write_bytes((content + b"\0\0")[:size])
        with pytest.raises(IndexedFormatError, match=f"{size} bytes found, 2200 expected"):
            verify_prefix(prefix)


def test_lengths_of_a_missing_index_name_its_path(tmp_path):
    with pytest.raises(DataPathError, match=r"none\.idx: no such file; .* contains no \.idx file"):
        sequence_lengths(tmp_path / "none")
