"""`find_conflicts` on sections without setup."""

from argparse import Namespace
from types import SimpleNamespace

import pytest

from mb_overlap import CommOverlapConfig, find_conflicts

QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"


def pipelined(*, pp, vp, overlap, batch, kind=SimpleNamespace):
    return kind(
        tensor_model_parallel_size=1,
        context_parallel_size=1,
        pipeline_model_parallel_size=pp,
        virtual_pipeline_model_parallel_size=vp,
        overlap_p2p_comm=overlap,
        batch_p2p_comm=batch,
    )


def found(*sections, **known_facts):
    return [(each.id, each.severity) for each in find_conflicts(*sections, **known_facts)]


@pytest.mark.parametrize("kind", [SimpleNamespace, Namespace, dict])
def test_interleaved_stages_without_overlapped_sends_are_found(kind):
    assert found(pipelined(pp=2, vp=2, overlap=False, batch=True, kind=kind)) == [("O05M", "error")]
    assert found(pipelined(pp=4, vp=2, overlap=False, batch=True, kind=kind)) == [("O05W", "warning")]
    assert found(pipelined(pp=2, vp=2, overlap=False, batch=False, kind=kind)) == [("O05W", "warning")]
    assert found(pipelined(pp=2, vp=2, overlap=True, batch=False, kind=kind)) == []
    assert found(pipelined(pp=4, vp=None, overlap=False, batch=True, kind=kind)) == []


def test_conflict_prints_field_problem_reason_and_fix():
    (conflict,) = find_conflicts(pipelined(pp=2, vp=2, overlap=False, batch=True))
    assert conflict.line.startswith(
        "[O05M] model.overlap_p2p_comm: two interleaved stages with batched sends train incorrectly (pp=2, vp=2, "
        "overlap_p2p_comm=false, batch_p2p_comm=true), because each pipeline schedule"
    )
    assert conflict.values["model.pipeline_model_parallel_size"] == 2


def test_section_is_checked_before_setup():
    model, requests = (
        pipelined(pp=2, vp=2, overlap=True, batch=False),
        CommOverlapConfig(tp_comm_overlap=True),
    )
    assert found(model, comm_overlap=requests) == [("O02", "warning")]


def fsdp(**model):
    section = pipelined(pp=1, vp=None, overlap=False, batch=False)
    return SimpleNamespace(**{**vars(section), **model}), None, SimpleNamespace(use_megatron_fsdp=True)


@pytest.mark.parametrize(
    ("model", "facts", "expected"),
    [
        ({}, {"env": {QUEUES: "1"}}, [("O23", "error")]),
        ({}, {"env": {QUEUES: "8"}}, []),
        ({"tensor_model_parallel_size": 2}, {"env": {}, "gpu": "h100"}, [("O23a", "warning")]),
        ({"tensor_model_parallel_size": 2}, {"env": {}, "gpu": "b200"}, []),
        ({"context_parallel_size": 2}, {"env": {}}, []),
    ],
)
def test_fsdp_with_a_single_hardware_queue_is_a_problem(model, facts, expected):
    assert found(*fsdp(**model), facts=facts) == expected


@pytest.mark.parametrize(
    ("value", "gpu", "expected"),
    [
        ("8", "h100", [("O23b", "warning")]),
        ("1", "h100", []),
        ("1", "b200", [("O23b", "warning")]),
        ("32", "b200", []),
        ("8", "abacus", []),
    ],
)
def test_number_of_queues_that_prevents_overlap_is_found(value, gpu, expected):
    model = SimpleNamespace(tensor_model_parallel_size=2, expert_model_parallel_size=1)
    facts = {"env": {QUEUES: value}, "gpu": gpu, "world_size": 8}
    assert found(model, None, SimpleNamespace(), facts=facts) == expected


def test_queues_are_not_checked_with_expert_parallelism():
    model = SimpleNamespace(tensor_model_parallel_size=2, expert_model_parallel_size=2)
    facts = {"env": {QUEUES: "32"}, "gpu": "h100", "world_size": 8}
    assert found(model, None, SimpleNamespace(), facts=facts) == []


def test_settings_of_a_model_are_checked_against_its_transformer_engine():
    model = SimpleNamespace(tp_comm_overlap_cfg={"fc2_wgrad": {"method": "external"}})
    assert found(model, facts={"transformer_engine_version": "2.6.0"}) == [("O24aM", "error")]
    assert found(model, facts={"transformer_engine_version": "2.7.0"}) == []


def test_path_to_settings_is_not_checked():
    path = Namespace(tp_comm_overlap_cfg="ub.yaml")
    assert found(path, facts={"transformer_engine_version": "2.6.0"}) == []
