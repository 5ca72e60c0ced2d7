"""Collectives of a save: what every rank sends and receives must not grow with the number of ranks."""

import pytest
import rank_work


@pytest.mark.parametrize("section", [{}, {"fully_parallel_save": False}])
def test_only_the_first_save_gathers_plans(two_ranks, tmp_path, section):
    """A later save gathers the results of the writes alone, and sends those of rank 0 to all ranks."""
    by_rank = two_ranks.run(
        rank_work.collectives_of_saves, {"dist_opt": True}, {"save": str(tmp_path), **section}, 3
    )
    for first, *later in by_rank:
        assert first["gather_object"] == 3  # pieces to be validated on rank 0, plans, results
        assert first.get("all_gather_object", 0) == (section.get("fully_parallel_save") is not False)
        assert all(set(save) == {"broadcast_object_list", "gather_object", "bytes"} for save in later)
        assert all(save["gather_object"] == 1 and save["bytes"] < first["bytes"] for save in later)


def test_a_rank_sends_no_more_among_more_ranks(two_ranks, four_ranks, tmp_path):
    """The last rank of a model without parallelism holds the same tensors among 2 and 4 ranks, and writes fewer."""
    found = []
    for ranks in (two_ranks, four_ranks):
        section = {"save": str(tmp_path / str(len(found)))}
        found.append(ranks.run(rank_work.collectives_of_saves, {}, section, 2)[-1])
    for of_two, of_four in zip(*found, strict=True):
        assert {**of_two, "bytes": 0} == {**of_four, "bytes": 0}
        assert of_two["bytes"] >= of_four["bytes"]


def test_a_plan_is_reused_until_the_tensors_of_a_rank_change(two_ranks):
    (first, same, changed), (*_, other) = two_ranks.run(rank_work.plans_of_states)
    assert first == same == (["a", "b", "common_state/shard_0_1"], first[1])
    assert changed[0] == ["a", "b", "c", "common_state/shard_0_1"]
    written = [name for name in (*changed[1], *other[1]) if not name.startswith("common_state")]
    assert sorted(written) == ["a", "b", "c"]  # each by one rank
    assert other[0] is None


def test_garbage_is_not_collected_while_plans_arrive(two_ranks):
    assert two_ranks.run(rank_work.collector_while_planning) == [[False, False, False, True]] * 2


def test_a_tensor_that_no_rank_writes_is_rejected_on_every_rank(two_ranks):
    errors = two_ranks.run(rank_work.error_of, rank_work.tensor_that_no_rank_writes)
    assert [kind for kind, _, _ in errors] == ["CheckpointingException"] * 2
    assert all("Invalid access pattern" in message for _, message, _ in errors)


def test_objects_travel_through_host_memory(two_ranks):
    found = two_ranks.run(rank_work.objects_next_to_a_group_of_devices)
    assert found == [([0, 1], True, True, True)] * 2
