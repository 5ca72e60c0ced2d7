import json

import numpy as np
import pytest

from mb_data import IndexedWriter
from mb_data.megatron.fingerprint import content_digest, data_fingerprint, pair_states

mb_host = pytest.importorskip("mb_host", reason="needs the test group")
pytest.importorskip("megatron", reason="needs the mcore extra")
pytest.importorskip("tokenizers", reason="needs the tokenizers extra")
rank_programs = pytest.importorskip("rank_programs")


@pytest.mark.slow
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


def write_files(folder, *, documents=50):
    for name, first in (("a", 0), ("b", 100)):
        with IndexedWriter(folder / name, dtype="uint16") as writer:
            for number in range(documents):
                writer.add_document(np.arange(first, first + 9 + number % 5) % 256)
    (folder / "text").mkdir()
    for number in range(30):
        (folder / "text" / f"{number}.txt").write_text(
            f"{number} the rain in spain stays in the plain {number**3}"
        )
    rows = [json.dumps({"input": f"{number} + 1", "output": str(number + 1)}) for number in range(20)]
    for split in ("training", "validation", "test"):
        (folder / f"{split}.jsonl").write_text("\n".join(rows))


def test_machines_without_a_shared_folder_build_what_they_lack_and_read_the_same_samples(tmp_path):
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
        write_files(folder)
    with mb_host.RankPool(2, timeout_seconds=100, imports=["megatron.core"]) as pool:
        for kind in ("pair", "blend", "corpus", "t5", "finetuning", "packs"):
            for _ in range(2):  # the second time from the caches
                first, second = pool.run(rank_programs.read_with_own_files, kind, list(map(str, folders)))
                assert first == second, kind
        other = tmp_path / "other"
        other.mkdir()
        write_files(other, documents=49)
        with pytest.raises(
            mb_host.RankFailedError, match="of rank 1 have other documents than those of rank 0"
        ):
            pool.run(rank_programs.read_with_own_files, "pair", [str(folders[0]), str(other)])


def test_one_rank_of_a_machine_reads_the_indices_to_compare_them(write_pair):
    prefixes = [write_pair("a", documents=5), write_pair("b", documents=6)]
    with mb_host.RankPool(2, timeout_seconds=100, imports=["megatron.core"]) as pool:
        found = pool.run(rank_programs.digest_of_files, prefixes)
    content = content_digest(prefixes, pair_states(prefixes))
    assert found == [(content, 1), (content, 0)]
    assert data_fingerprint(prefixes, content=content) == data_fingerprint(prefixes)
