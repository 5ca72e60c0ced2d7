"""Norms of a model distributed over four ranks, against torch's norm of its gathered tensors."""

import math
import re
from pathlib import Path

import pytest

LAYOUTS = {
    "tp pp, tied": {"tp": 2, "pp": 2, "tied": True},
    "tp dp": {"tp": 2, "distributed_optimizer": True},
    "cp pp, tied": {"cp": 2, "pp": 2, "tied": True, "distributed_optimizer": True},
    "pp in chunks": {"pp": 2, "vp": 2, "tied": True},
    "ep dp": {"ep": 2, "experts": 4, "distributed_optimizer": True},
    "ep pp": {"ep": 2, "pp": 2, "experts": 4, "tied": True},
    "tp ep": {"tp": 2, "ep": 2, "experts": 4},
    "tp, experts whole": {"tp": 2, "ep": 2, "etp": 1, "experts": 4, "distributed_optimizer": True},
}


@pytest.fixture(scope="module")
def measured(four_ranks, tmp_path_factory):
    mb_host = pytest.importorskip("mb_host")
    measure = mb_host.function_in(Path(__file__).with_name("norm_ranks.py"), "measure_layout")

    def run(**layout):
        return four_ranks.run(measure, layout, str(tmp_path_factory.mktemp("gathered")))

    return run


@pytest.mark.parametrize("layout", LAYOUTS)
def test_norms_are_those_of_the_gathered_model_on_every_rank(measured, layout):
    for found in measured(**LAYOUTS[layout]):
        assert found["params"] == pytest.approx(found["params wanted"], rel=1e-6)
        assert found["updated"] == pytest.approx(found["updated wanted"], rel=1e-6)
        assert found["gradients"] == pytest.approx(found["gradients wanted"], rel=1e-5)
        assert found["gradients"] == pytest.approx(found["optimizer"], rel=1e-5)
        assert found["by name"] == pytest.approx(found["by name, plain"], rel=1e-4, abs=1e-7)
        assert found["of all stages"]["l2_norm/grad/global"] == pytest.approx(
            found["gradients"] / 2, rel=1e-6
        )
        layers = {
            re.search(r"layers\.(\d+)", name)[1] for name in found["of all stages"] if "layers." in name
        }
        assert layers == {"0", "1", "2", "3"}
        squares = [norm**2 for name, norm in found["of all stages"].items() if not name.endswith("/global")]
        assert math.sqrt(sum(squares)) == pytest.approx(found["gradients"] / 2, rel=1e-5)


def test_half_precision_weights_are_measured_by_the_optimizers_copy(measured):
    for found in measured(tp=2, bf16=True, distributed_optimizer=True):
        assert found["params"] == pytest.approx(found["params wanted"], rel=1e-6)
        assert found["params of weights"] == pytest.approx(found["params wanted"], rel=1e-6)
        assert found["updated"] == pytest.approx(found["updated wanted"], rel=1e-5)
        assert found["gradients"] == pytest.approx(found["optimizer"], rel=1e-5)
