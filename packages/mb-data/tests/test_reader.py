"""Random access to documents, the complete check of a pair, and statistics of blends."""

import numpy as np
import pytest

from mb_data import (
    DataPathError,
    IndexedReader,
    IndexedWriter,
    NotEnoughSamplesError,
    blend_stats,
    examine_prefix,
)
from mb_data.errors import DocumentNumberError, IndexedFormatError
from mb_data.text.indexed import HEADER

DOCUMENTS = [[5, 6, 7, 9], [], [1, 9], [*range(1, 8), 9]]


@pytest.fixture
def prefix(tmp_path):
    return write(tmp_path / "play", DOCUMENTS)


def write(prefix, documents, *, dtype="uint16"):
    with IndexedWriter(prefix, dtype=dtype) as writer:
        for document in documents:
            writer.add_document(document)
    return prefix


def poke(path, position, value, *, size):
    with path.open("r+b") as stream:
        stream.seek(position)
        stream.write(value.to_bytes(size, "little", signed=True))


class TestReader:
    def test_documents_are_read_back(self, prefix):
        reader = IndexedReader(prefix)
        assert [reader.document(number).tolist() for number in range(len(reader))] == DOCUMENTS
        assert reader.document_lengths().tolist() == [4, 0, 2, 8]

    def test_a_document_of_several_sequences_is_one(self, prefix):
        idx = prefix.with_suffix(".idx")
        boundaries = HEADER.size + 4 * 12
        content = idx.read_bytes()[:boundaries] + np.array([0, 3, 4], np.int64).tobytes()
        idx.write_bytes(content[:18] + np.array([4, 3], np.int64).tobytes() + content[34:])
        reader = IndexedReader(prefix)
        assert reader.document(0).tolist() == [5, 6, 7, 9, 1, 9]
        assert (len(reader), reader.document_lengths().tolist(), examine_prefix(prefix)) == (2, [6, 8], [])

    def test_an_empty_pair(self, tmp_path):
        reader = IndexedReader(write(tmp_path / "none", []))
        assert (len(reader), reader.document_lengths().tolist(), examine_prefix(reader.prefix)) == (0, [], [])

    @pytest.mark.parametrize("number", [-1, 4])
    def test_a_document_that_does_not_exist(self, prefix, number):
        with pytest.raises(DocumentNumberError, match=rf"has no document {number}; it has 4"):
            IndexedReader(prefix).document(number)

    def test_an_inconsistent_index_is_rejected_and_not_read(self, prefix):
        poke(prefix.with_suffix(".idx"), HEADER.size + 4 * 12 + 8, 9, size=8)
        reader = IndexedReader(prefix)
        for read in (
            reader.document_lengths,
            lambda: reader.document(0),
            lambda: blend_stats(([str(prefix)], None)),
        ):
            with pytest.raises(IndexedFormatError, match="documents are not consecutive"):
                read()


class TestExamine:
    def test_a_valid_pair(self, prefix):
        reported = []
        found = examine_prefix(prefix, vocab_size=10, eod=9, progress=lambda *news: reported.append(news))
        assert (found, reported) == ([], [("read", 14, 14)])

    def test_tokens_beyond_the_vocabulary(self, prefix):
        (problem,) = examine_prefix(prefix, vocab_size=9)
        assert "token 3 is 9, but the tokenizer has 9 entries" in problem

    def test_documents_without_an_end(self, prefix):
        (problem,) = examine_prefix(prefix, eod=7)
        assert "3 of 4 documents do not end with the end-of-document id 7" in problem

    def test_a_sequence_with_a_wrong_offset(self, prefix):
        poke(prefix.with_suffix(".idx"), HEADER.size + 4 * 4 + 8 * 2, 2, size=8)
        (problem,) = examine_prefix(prefix)
        assert (
            "1 sequences do not start at the end of the previous one; sequence 2 starts at byte 2 instead of 8"
            in problem
        )

    def test_a_negative_length(self, prefix):
        poke(prefix.with_suffix(".idx"), HEADER.size + 4, -3, size=4)
        (problem,) = examine_prefix(prefix)
        assert "sequence 1 has -3 tokens" in problem

    def test_documents_out_of_order(self, prefix):
        poke(prefix.with_suffix(".idx"), HEADER.size + 4 * 12 + 8, 3, size=8)
        (problem,) = examine_prefix(prefix)
        assert "documents are not consecutive from sequence 0 to 4" in problem

    def test_a_truncated_file_is_a_problem_and_a_missing_file_an_error(self, prefix, tmp_path):
        prefix.with_suffix(".bin").write_bytes(b"12")
        assert "2 bytes found, 28 expected" in examine_prefix(prefix)[0]
        with pytest.raises(DataPathError, match=r"no such \.bin/\.idx pair"):
            examine_prefix(tmp_path / "other")


class TestStats:
    def test_one_pair(self, prefix):
        (found,) = blend_stats(([str(prefix)], None))
        assert (found.documents, found.tokens, found.shortest, found.median, found.longest) == (
            4,
            14,
            0,
            3.0,
            8,
        )
        assert (found.mean, found.share, found.epochs) == (3.5, 1.0, None)
        assert found.histogram == ((1, 1), (4, 1), (8, 1), (16, 1))

    def test_shares_and_epochs_of_a_blend(self, prefix, tmp_path):
        other = write(tmp_path / "other", [[1] * 14])
        found = blend_stats(([str(prefix), str(other)], [30.0, 70.0]), read_tokens=1400)
        assert [(part.share, part.epochs) for part in found] == [(0.3, 30.0), (0.7, pytest.approx(70.0))]
        by_size = blend_stats(([str(prefix), str(other)], None), read_tokens=56)
        assert [(part.share, part.epochs) for part in by_size] == [(0.5, 2.0), (0.5, 2.0)]

    def test_a_part_without_tokens_that_a_run_would_read(self, prefix, tmp_path):
        empty = write(tmp_path / "empty", [])
        with pytest.raises(NotEnoughSamplesError, match=r"has no tokens, but its share of the run is 50\.0%"):
            blend_stats(([str(prefix), str(empty)], [1.0, 1.0]), read_tokens=10)
        assert blend_stats(([str(empty)], None))[0].histogram == ()
