"""Every file is listed with its size and hash, and every changed bit is detected."""

import hashlib

import complete_checkpoint
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from mb_checkpoint.errors import ManifestError
from mb_checkpoint.formats.manifest import (
    CHUNK_BYTES,
    FileEntry,
    Manifest,
    _rendered,
    decode_manifest,
    encode_manifest,
    files_of_rank,
    find_hash_mismatches,
    find_size_mismatches,
    hash_file,
    read_manifest,
)


def entry(name, size):
    return FileEntry(name=name, size=size, checksum="xxh3_128:" + "0" * 32)


MANIFEST = Manifest(
    step=7,
    files=(entry("a/b", 3),),
    layout={"tensor_model_parallel_size": 2},
    content={"optimizer": True},
    versions={"torch": "2.11"},
)


def test_a_manifest_survives_the_file():
    assert decode_manifest(encode_manifest(MANIFEST), source="x") == MANIFEST


def test_a_changed_bit_anywhere_in_a_manifest_is_noticed():
    content = encode_manifest(MANIFEST)
    for position in range(len(content) * 8):
        changed = bytearray(content)
        changed[position // 8] ^= 1 << position % 8
        with pytest.raises(ManifestError, match=r"^x: "):
            decode_manifest(bytes(changed), source="x")


def test_a_manifest_of_a_later_format_is_rejected_by_number(monkeypatch):
    monkeypatch.setattr("mb_checkpoint.formats.manifest.FORMAT", 3)
    content = encode_manifest(MANIFEST)
    monkeypatch.undo()
    with pytest.raises(ManifestError, match="has format 3 and this version knows 2"):
        decode_manifest(content, source="x")


def test_a_manifest_of_format_1_has_sha256_sums(tmp_path):
    content = b"weights"
    (tmp_path / "data").write_bytes(content)
    old = {"name": "data", "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    body = {"format": 1, "step": 7, "files": [old], "ckpt_format": "torch_dist"}
    body |= {"layout": {}, "content": {}, "versions": {}}
    own_hash = hashlib.sha256(_rendered(body)).hexdigest()
    manifest = decode_manifest(_rendered({**body, "manifest_sha256": own_hash}), source="x")
    assert manifest.files == (hash_file(tmp_path / "data", name="data", algorithm="sha256"),)
    assert find_hash_mismatches(tmp_path, manifest.files) == []
    (tmp_path / "data").write_bytes(b"damaged")
    assert find_hash_mismatches(tmp_path, manifest.files) == ["data differs from the manifest (checksum)"]


def test_a_checksum_of_an_unknown_kind_is_a_problem_of_its_file(tmp_path):
    (tmp_path / "data").write_bytes(b"x")
    entries = [FileEntry(name="data", size=1, checksum="crc:00")]
    assert find_hash_mismatches(tmp_path, entries) == [
        "data has a checksum of an unknown kind in the manifest (crc)"
    ]


def test_sha256_can_be_chosen(tmp_path):
    (tmp_path / "data").write_bytes(b"x")
    entry = hash_file(tmp_path / "data", name="data", algorithm="sha256")
    assert entry.checksum == "sha256:" + hashlib.sha256(b"x").hexdigest()


def test_a_saved_checkpoint_lists_every_file_with_its_checksum(tmp_path):
    folder = complete_checkpoint.save(tmp_path, 10)
    manifest = read_manifest(folder)
    files = sorted(path.name for path in folder.iterdir() if path.name != "manifest.json")
    assert [each.name for each in manifest.files] == files
    for each in manifest.files:
        content = (folder / each.name).read_bytes()
        assert (each.size, each.checksum) == (len(content), f"xxh3_128:{xxhash.xxh3_128_hexdigest(content)}")
    assert manifest.total_bytes == sum(each.size for each in manifest.files)


def test_a_folder_without_a_manifest_has_none(tmp_path):
    assert read_manifest(tmp_path) is None


def test_missing_short_and_changed_files_are_named(tmp_path):
    folder = complete_checkpoint.save(tmp_path, 10)
    manifest = read_manifest(folder)
    (folder / "metadata.json").unlink()
    (folder / ".metadata").write_bytes(b"12")
    state = folder / "train_state.pt"
    state.write_bytes(state.read_bytes()[:-1] + b"x")
    size = next(each.size for each in manifest.files if each.name == ".metadata")
    assert find_size_mismatches(folder, manifest) == [
        f".metadata has 2 of {size} bytes",
        "lacks metadata.json",
    ]
    assert find_hash_mismatches(folder, manifest.files) == [
        ".metadata differs from the manifest (checksum)",
        "metadata.json cannot be read (No such file or directory)",
        "train_state.pt differs from the manifest (checksum)",
    ]


def test_progress_is_reported_by_one_thread_at_a_time(tmp_path):
    sizes = {"a": 3 * CHUNK_BYTES + 5, "b": CHUNK_BYTES, "c": 0}
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(bytes(size))
    entries = [hash_file(tmp_path / name, name=name) for name in sizes]
    reported = []
    assert find_hash_mismatches(tmp_path, entries, progress=reported.append) == []
    assert sorted(reported) == [5, *[CHUNK_BYTES] * 4]


def test_several_readers_share_the_bytes():
    manifest = Manifest(step=1, files=tuple(entry(str(size), size) for size in (50, 30, 20, 10)))
    shares = [[each.size for each in files_of_rank(manifest, rank=rank, world_size=2)] for rank in range(2)]
    assert shares == [[50, 10], [30, 20]]


def test_ranks_that_saved_get_their_own_files_up_to_twice_the_mean():
    files = (entry("__0_0.distcp", 50), entry("__1_0.distcp", 40), entry("__1_1.distcp", 30), entry("a", 5))
    saved = Manifest(step=1, files=files, layout={"world_size": 2})
    by_two = [[each.name for each in files_of_rank(saved, rank=rank, world_size=2)] for rank in range(2)]
    assert by_two == [["__0_0.distcp", "a"], ["__1_0.distcp", "__1_1.distcp"]]
    of_one = Manifest(step=1, files=files[1:3], layout={"world_size": 3})
    shares = [[each.size for each in files_of_rank(of_one, rank=rank, world_size=3)] for rank in range(3)]
    assert shares == [[30], [40], []]


@given(st.lists(st.integers(0, 20), max_size=40), st.integers(1, 9))
def test_each_file_goes_to_the_reader_with_the_fewest_bytes(sizes, world_size):
    """As the obvious search over all readers finds it, the largest files first."""
    files = [
        FileEntry(name=f"{number:03}", size=size, checksum="xxh3_128:0") for number, size in enumerate(sizes)
    ]
    shares, filled = [[] for _ in range(world_size)], [0] * world_size
    for file in sorted(files, key=lambda each: (-each.size, each.name)):
        emptiest = filled.index(min(filled))
        shares[emptiest].append(file)
        filled[emptiest] += file.size
    manifest = Manifest(step=1, files=tuple(files))
    assert [files_of_rank(manifest, rank=rank, world_size=world_size) for rank in range(world_size)] == shares
