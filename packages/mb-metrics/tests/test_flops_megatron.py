"""The formulas against what torch counts while Megatron's own models run."""

from pathlib import Path

import pytest

CASES = [
    "latent, shared experts, first layer dense",
    "two more tokens predicted",
    "latent, low-rank queries",
    "grouped, gated, wide heads",
    "dense",
    "latent",
    "experts",
    "output gate",
    "t5",
]


@pytest.fixture(scope="module")
def counted(four_ranks):
    mb_host = pytest.importorskip("mb_host")
    count_all = mb_host.function_in(Path(__file__).with_name("counted_models.py"), "count_all")
    results = four_ranks.run(count_all, {case: index % 4 for index, case in enumerate(CASES)})
    return {name: result for part in results for name, result in part.items()}


@pytest.mark.parametrize("case", CASES)
def test_the_formula_is_what_torch_counts_while_megatrons_model_runs(counted, case):
    flops, formula = counted[case]
    assert flops == pytest.approx(formula.total, rel=1e-12), formula.parts
