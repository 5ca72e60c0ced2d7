"""Encoder and language model with layouts of their own learn as on one rank, from the same weights."""

import dataclasses

import mimo_ranks
import pytest

from mb_models.mimo_modules import LANGUAGE, VISION, ModuleRanks, refuse
from mb_models.rules import ModelConfigError


@pytest.fixture(scope="module")
def reference(groups, tmp_path_factory):
    """Return the folder of the common weights, and what one rank does with them."""
    folder = str(tmp_path_factory.mktemp("start"))
    return folder, mimo_ranks.train_together(folder, groups)


@pytest.mark.parametrize(
    ("vision", "language"),
    [
        ({}, {"first": 1}),
        ({"data_parallel_size": 2}, {"tensor_parallel_size": 2}),
        ({"tensor_parallel_size": 2}, {"data_parallel_size": 2}),
    ],
    ids=["one rank each", "DP 2 into TP 2", "TP 2 into DP 2"],
)
def test_modules_learn_as_one_rank_does(vision, language, reference, pool):
    folder, (losses, norms) = reference
    assert losses[-1] < losses[0] - 0.01
    for told, measured in pool.run(mimo_ranks.train_modules, folder, vision, language):
        assert told in ([], pytest.approx(losses, abs=1e-5))  # nothing where only the encoder is
        assert measured == pytest.approx(norms, abs=1e-4)


@pytest.mark.parametrize(
    ("vision", "language", "changes", "message"),
    [
        ({"data_parallel_size": 2}, {"first": 1}, {}, r"share some of ranks \[0, 1\] and \[1\]"),
        ({}, {"first": 1, "tensor_parallel_size": 2}, {}, r"are on ranks \[0, 1, 2\] of 2"),
        ({}, {"first": 1}, {"calculate_per_token_loss": False}, "Switch it on"),
        ({}, {"first": 1}, {"bf16": True, "context_parallel_size": 2}, "context_parallel_size=2, bf16=True"),
    ],
)
def test_what_modules_cannot_do_is_refused(vision, language, changes, message):
    ranks = {VISION: ModuleRanks(**vision), LANGUAGE: ModuleRanks(**language)}
    with pytest.raises(ModelConfigError, match=message):
        refuse(dataclasses.replace(mimo_ranks.SECTION, **changes), ranks, world_size=2)
