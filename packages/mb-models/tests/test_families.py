"""Every family under every layout of `family_cases` has the losses of one rank, from one checkpoint."""

import dataclasses
from pathlib import Path

import pytest
from family_cases import CASES, FAMILIES, REJECTED, FamilyCase, counts, table
from family_ranks import alone, section_of, train, train_here, write_start

from mb_models.rules import BUILD_RULES
from mb_models.training.gpu_only import GPU_ONLY


def further(row):
    """Return whether a case runs in the matrix only: all but the first four of its family on two ranks, one on four."""
    family = [each for each in CASES if (each.family, each.ranks) == (row.family, row.ranks)]
    return family.index(row) >= {2: 4, 4: 1}[row.ranks]


def cases(ranks):
    """Return the cases on so many ranks."""
    return [
        pytest.param(row, marks=[pytest.mark.matrix] * further(row), id=str(row))
        for row in CASES
        if row.ranks == ranks
    ]


@pytest.fixture(scope="module")
def reference(groups, tmp_path_factory):
    """Return a function: case -> (folder of the common checkpoint, losses of one rank from it)."""
    known = {}

    def of(row):
        one = alone(row)
        name = f"{one.family} {sorted(one.model.items())}"
        if name not in known:
            folder = str(tmp_path_factory.mktemp("start"))
            write_start(one, folder, groups)
            known[name] = folder, train(one, folder, groups)
        return known[name]

    return of


@pytest.mark.parametrize("row", cases(2))
def test_two_ranks_match_one_rank(row, reference, pool):
    folder, losses = reference(row)
    assert losses[-1] < losses[0] - 0.01
    assert pool.run(train_here, row, folder)[-1] == pytest.approx(losses, abs=row.tolerance, rel=0)


@pytest.mark.parametrize("row", cases(4))
def test_four_ranks_match_one_rank(row, reference, four_ranks):
    folder, losses = reference(row)
    assert four_ranks.run(train_here, row, folder)[-1] == pytest.approx(losses, abs=row.tolerance, rel=0)


@pytest.mark.parametrize("case", REJECTED, ids=lambda case: f"{case.family} {case.column}")
def test_rejected_cases_of_the_table_are_rejected(case):
    row = FamilyCase(family=case.family, layout=case.layout, model=case.model)
    section = section_of(row)
    values = {f"model.{item.name}": getattr(section, item.name) for item in dataclasses.fields(section)}
    [rule] = [rule for rule in BUILD_RULES if rule.id == case.rule]
    assert rule.severity == "error"
    assert rule.message(values)


def test_the_table_in_the_documentation_is_generated_from_the_cases():
    page = (Path(__file__).parents[3] / "meta" / "docs" / "packages" / "mb-models.md").read_text()
    assert table() in page
    assert counts() in page
    assert "not run" not in table()
    assert len({str(row) for row in CASES}) == len(CASES)
    assert {row.family for row in CASES} == {*FAMILIES}
    assert GPU_ONLY["cuda_graph_impl"] == "none"
