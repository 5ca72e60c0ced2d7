import sys
from pathlib import Path

import pytest

mb_host = pytest.importorskip("mb_host", reason="needs the test group")
pytest.importorskip("megatron", reason="needs the mcore extra")
pytest.importorskip("tokenizers", reason="needs the tokenizers extra")
sys.path.insert(0, str(Path(__file__).parent))  # the ranks inherit it: they import rank_programs by name
rank_programs = pytest.importorskip("rank_programs")


def test_two_ranks_build_one_corpus_and_read_every_sample_once(text_folder, write_pair, tmp_path):
    paths = str(text_folder), str(tmp_path / "cache")
    blend = ["1", write_pair("a", documents=50), "2", write_pair("b", documents=50, first=100)]
    with mb_host.RankPool(2, timeout_seconds=100, imports=["megatron.core"]) as pool:
        first, second = pool.run(rank_programs.read_corpus, *paths)
        alone, nothing = pool.run(rank_programs.read_corpus_on_rank_zero, *paths)
        (blends, read), (others, unread) = pool.run(rank_programs.read_blend, blend)
    assert [row for pair in zip(first, second, strict=True) for batch in pair for row in batch] == alone
    assert nothing is None
    assert [name for name, _ in blends] == ["BlendedDataset", "RecordedBlend"]
    assert (blends, blends[0][1], read, unread) == (others, blends[1][1], False, True)
