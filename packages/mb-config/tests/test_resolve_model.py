"""Resolving of fields that follow from the model section."""

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
        cuda_graph_impl: str = "none"

    return Experts


def test_a_flex_dispatcher_without_a_backend_becomes_alltoall(make, experts):
    config = make(model=experts())
    changes = runtime_config_update(config, world_size=1)
    assert [c.why for c in changes if c.field == "model.moe_token_dispatcher_type"] == [
        "V158: the flex dispatcher has no backend"
    ]
    assert config.model.moe_token_dispatcher_type == "alltoall"


def test_a_flex_dispatcher_with_a_backend_is_kept(make, experts):
    config = make(model=experts(moe_flex_dispatcher_backend="deepep"))
    runtime_config_update(config, world_size=1)
    assert config.model.moe_token_dispatcher_type == "flex"


def test_deterministic_mode_sets_the_variables_of_libraries(make, experts):
    config = make(model=experts(deterministic_mode=True), env_vars={"CUBLAS_WORKSPACE_CONFIG": ":16:8"})
    provenance = Provenance()
    runtime_config_update(config, world_size=1, provenance=provenance)
    assert config.env_vars == {
        "CUBLAS_WORKSPACE_CONFIG": ":16:8",
        "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0",
    }
    assert provenance.origin("env_vars.NVTE_ALLOW_NONDETERMINISTIC_ALGO") == "resolve: V142"
    assert runtime_config_update(config, world_size=1, provenance=provenance) == []


def test_nondeterministic_variables_are_rejected_in_deterministic_mode():
    env = {"NCCL_ALGO": "Ring", "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "1"}
    found = check({"model": {"deterministic_mode": True}, "dist": {}}, RULES, facts={"env": env})
    assert [str(problem) for problem in found] == [
        "model.deterministic_mode: requires NVTE_ALLOW_NONDETERMINISTIC_ALGO=0, not 1, because cuBLAS "
        "and Transformer Engine otherwise select nondeterministic kernels. Unset that variable: resolving sets it "
        "to a supported value."
    ]


GROWING = {"PYTORCH_ALLOC_CONF": "backend:native, expandable_segments: True"}


@pytest.fixture
def graphs(make, experts):
    """Build a configuration with graphs of layers, and resolve it with facts; return its variables and the changes."""

    def resolve(facts, *, kind="transformer_engine", **env_vars):
        config = make(model=experts(cuda_graph_impl=kind), env_vars=env_vars)
        changes = runtime_config_update(config, world_size=1, facts=facts, rules=())
        return config.env_vars, [str(change) for change in changes if change.rule == "V152b"]

    return resolve


def test_graphs_of_layers_in_expandable_segments_are_not_registered_with_nccl(graphs):
    assert graphs({"env": GROWING}) == (
        {"NCCL_GRAPH_REGISTER": "0"},
        [
            "env_vars.NCCL_GRAPH_REGISTER: None -> 0 (V152b: NCCL must not register captured buffers that grow "
            "(PYTORCH_ALLOC_CONF=backend:native, expandable_segments: True))"
        ],
    )
    assert graphs({}, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")[0]["NCCL_GRAPH_REGISTER"] == "0"


@pytest.mark.parametrize(
    ("facts", "kind"),
    [
        ({"env": {"PYTORCH_ALLOC_CONF": "expandable_segments:False"}}, "transformer_engine"),
        ({"env": {**GROWING, "NCCL_GRAPH_REGISTER": "1"}}, "transformer_engine"),
        ({"env": GROWING, "cpu": True}, "transformer_engine"),
        ({"env": GROWING}, "full_iteration"),
    ],
)
def test_other_runs_do_not_change_the_registration(graphs, facts, kind):
    assert graphs(facts, kind=kind) == ({}, [])


def test_a_registration_that_the_user_sets_is_rejected():
    env = {**GROWING, "NCCL_GRAPH_REGISTER": "1"}
    model = {"cuda_graph_impl": "transformer_engine"}
    (problem,) = check({"model": model}, RULES, facts={"env": env})
    assert str(problem).startswith(
        "model.cuda_graph_impl: is transformer_engine with PYTORCH_ALLOC_CONF=backend:native, expandable_segments: "
        "True and NCCL_GRAPH_REGISTER=1, because NCCL would register"
    )


@pytest.mark.parametrize(
    ("stages", "experts", "dispatcher", "expected"),
    [
        (2, None, "allgather", (True, "alltoall")),
        (2, 4, "allgather", (True, "allgather")),  # rule G39 rejects it
        (2, 4, "alltoall", (True, "alltoall")),
        (1, None, "allgather", (False, "allgather")),
    ],
)
def test_packing_in_the_batch_makes_lengths_differ_between_stages(
    make, kinds, stages, experts, dispatcher, expected
):
    @dataclass(kw_only=True)
    class Model(kinds["Model"]):
        pipeline_model_parallel_size: int = stages
        variable_seq_lengths: bool = False
        num_moe_experts: int | None = experts
        moe_token_dispatcher_type: str = dispatcher

    @dataclass(kw_only=True)
    class Data(kinds["TextData"]):
        pack_sequences_in_batch: bool = True

    config = make(model=Model(), dataset=Data(seq_length=8))
    runtime_config_update(config, world_size=stages, rules=())
    assert (config.model.variable_seq_lengths, config.model.moe_token_dispatcher_type) == expected
