"""What follows from switches of the model."""

from dataclasses import dataclass

import pytest

from mb_config import RULES, Provenance, check, runtime_config_update


@pytest.fixture
def experts(kinds):
    @dataclass(kw_only=True)
    class Experts(kinds["Model"]):
        deterministic_mode: bool = False
        moe_token_dispatcher_type: str = "flex"
        moe_flex_dispatcher_backend: str | None = None

    return Experts


def test_a_flexible_dispatcher_without_a_backend_becomes_the_plain_one(make, experts):
    config = make(model=experts())
    changes = runtime_config_update(config, world_size=1)
    assert [c.why for c in changes if c.field == "model.moe_token_dispatcher_type"] == [
        "V158: the flexible dispatcher has no backend"
    ]
    assert config.model.moe_token_dispatcher_type == "alltoall"


def test_a_flexible_dispatcher_with_a_backend_stays(make, experts):
    config = make(model=experts(moe_flex_dispatcher_backend="deepep"))
    runtime_config_update(config, world_size=1)
    assert config.model.moe_token_dispatcher_type == "flex"


def test_a_deterministic_run_brings_the_settings_of_the_libraries(make, experts):
    config = make(model=experts(deterministic_mode=True), env_vars={"CUBLAS_WORKSPACE_CONFIG": ":16:8"})
    provenance = Provenance()
    runtime_config_update(config, world_size=1, provenance=provenance)
    assert config.env_vars == {
        "CUBLAS_WORKSPACE_CONFIG": ":16:8",
        "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0",
    }
    assert provenance.origin("env_vars.NVTE_ALLOW_NONDETERMINISTIC_ALGO") == "resolve: V142"
    assert runtime_config_update(config, world_size=1, provenance=provenance) == []


def test_settings_against_a_deterministic_run_are_refused():
    env = {"NCCL_ALGO": "Ring", "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "1"}
    found = check({"model": {"deterministic_mode": True}, "dist": {}}, RULES, facts={"env": env})
    assert [str(problem) for problem in found] == [
        "model.deterministic_mode: does not go with NVTE_ALLOW_NONDETERMINISTIC_ALGO=1, only with 0, because cuBLAS "
        "and Transformer Engine then pick kernels that add in changing order. Unset that variable: resolving sets it "
        "to a value that fits."
    ]
