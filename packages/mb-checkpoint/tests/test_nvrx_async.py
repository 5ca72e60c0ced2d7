"""Background writer of nvidia-resiliency-ext, if a version is installed that Megatron Core can use."""

import hashlib
import importlib.metadata

import async_work
import pytest
import rank_work


def usable():
    try:
        return int(importlib.metadata.version("nvidia-resiliency-ext").split(".")[1]) >= 6
    except importlib.metadata.PackageNotFoundError:
        return False


@pytest.mark.skipif(not usable(), reason="nvidia-resiliency-ext 0.6 or newer is not installed")
def test_a_run_resumed_from_its_background_save_equals_a_straight_one(two_ranks, tmp_path):
    shape, folder = {"dist_opt": True}, str(tmp_path)
    straight = two_ranks.run(rank_work.train_uninterrupted, shape, 4)
    section = {"save": folder, "async_strategy": "nvrx"}
    before = two_ranks.run(async_work.first_part_in_background, shape, section, 2)
    after = two_ranks.run(rank_work.second_part, shape, {"load": folder}, 2)
    assert [first[0] + second[0] for first, second in zip(before, after, strict=True)] == [
        losses for losses, _ in straight
    ]
    assert two_ranks.run(async_work.describe_writer, section) == ["NvrxWriter"] * 2


@pytest.mark.skipif(usable(), reason="shows what happens without nvidia-resiliency-ext 0.6 or newer")
def test_without_it_the_writer_of_this_package_is_used(one_rank, tmp_path):
    section = {"save": str(tmp_path), "async_strategy": "nvrx"}
    assert one_rank.run(async_work.describe_writer, section) == ["BackgroundWriter"]


def test_plans_of_the_library_are_reused_until_the_tensors_change(one_rank):
    assert one_rank.run(async_work.caches_of_a_library) == [[True, False]]


def test_each_rank_hashes_what_the_library_wrote_for_it_and_writes_the_position(one_rank, tmp_path):
    [(was_hashing, failure, files)] = one_rank.run(async_work.phases_with_a_library, str(tmp_path))
    digests = [f"sha256:{hashlib.sha256(content).hexdigest()}" for content in (b"weights", b"position")]
    assert (was_hashing, failure) == (True, None)
    assert files == list(zip(["__0_0.distcp", "position.bin"], digests, strict=True))
