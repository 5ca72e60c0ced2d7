"""Decisions for each parallel layout, with and without requested values."""

import pytest

from mb_overlap import DataParallelSizeError, OverlapConflictError, ParallelLayout, resolve_overlap

REQUESTED_TP = {"tp_comm_overlap": True}
ALL_OF_TP = {"tp": 2, "sequence_parallel": True, "transformer_engine": True}


def values(requests, **layout):
    return {
        name: decision.value for name, decision in resolve_overlap(requests, ParallelLayout(**layout)).items()
    }


def test_one_rank_overlaps_nothing():
    assert values({}) == {
        "tp_comm_overlap": False,
        "overlap_p2p_comm": False,
        "batch_p2p_comm": False,
        "defer_embedding_wgrad_compute": False,
        "wgrad_deferral_limit": -1,
    }


@pytest.mark.parametrize(
    ("layout", "rule", "reason"),
    [
        (ALL_OF_TP | {"tp": 1}, "O02", "needs tensor parallelism (tp=1)"),
        (
            ALL_OF_TP | {"sequence_parallel": False},
            "O03",
            "needs sequence parallelism (tp=2, sequence_parallel=false)",
        ),
        (
            ALL_OF_TP | {"transformer_engine": False},
            "O04",
            "needs Transformer Engine (transformer_engine=false)",
        ),
    ],
)
def test_tensor_parallel_overlap_is_rejected_without_its_requirements(layout, rule, reason):
    decision = resolve_overlap(REQUESTED_TP, ParallelLayout(**layout))["tp_comm_overlap"]
    assert (decision.value, decision.rule, decision.rejected) == (False, rule, True)
    assert decision.why.startswith(f"{reason}, because ")


@pytest.mark.parametrize("transformer_engine", [True, None])
def test_tensor_parallel_overlap_is_accepted(transformer_engine):
    layout = ALL_OF_TP | {"transformer_engine": transformer_engine}
    requests = REQUESTED_TP | {"tp_comm_overlap_cfg": {"qkv_dgrad": {}}, "tp_comm_bootstrap_backend": "nccl"}
    assert requests.items() <= values(requests, **layout).items()


def test_rejection_drops_the_gemm_settings():
    assert "tp_comm_overlap_cfg" not in values(REQUESTED_TP | {"tp_comm_overlap_cfg": {}}, tp=1)


@pytest.mark.parametrize(
    ("pp", "vp", "rule"), [(2, 2, "O05"), (2, None, "O06"), (2, 1, "O06"), (1, None, "O07"), (1, 2, "O07")]
)
def test_the_pipeline_rule_that_decides(pp, vp, rule):
    assert resolve_overlap({}, ParallelLayout(pp=pp, vp=vp))["overlap_p2p_comm"].rule == rule


def test_point_to_point_mode_that_trains_incorrectly_is_an_error():
    with pytest.raises(
        OverlapConflictError, match=r"\[O05\] comm_overlap.*two interleaved stages .*batch_p2p_comm=true"
    ):
        resolve_overlap({"batch_p2p_comm": True}, ParallelLayout(pp=2, vp=2))


@pytest.mark.parametrize(
    ("layout", "overlap", "bucket_size", "aligned"),
    [
        ({"dp": 1}, False, None, False),
        ({"dp": 1, "pp": 2, "vp": 2}, False, None, False),
        ({"dp": 2}, True, 134217728, False),
        ({"dp": 2, "pp": 2}, True, 134217728, False),
        ({"dp": 2, "pp": 2, "vp": 2}, True, 134217728, True),
        ({"dp": 2, "num_buckets": 4}, True, None, False),
    ],
)
def test_data_parallel_overlap_follows_the_layout(layout, overlap, bucket_size, aligned):
    expected = {
        "overlap_grad_reduce": overlap,
        "overlap_param_gather": overlap,
        "bucket_size": bucket_size,
        "align_param_gather": aligned,
        "overlap_param_gather_with_optimizer_step": False,
    }
    assert expected.items() <= values({}, distributed_optimizer=True, **layout).items()


def test_explicit_false_takes_precedence_over_the_layout():
    decision = resolve_overlap(
        {"overlap_grad_reduce": False}, ParallelLayout(dp=8, distributed_optimizer=True)
    )
    assert (decision["overlap_grad_reduce"].value, decision["overlap_grad_reduce"].rule) == (False, "O15")
    assert decision["overlap_param_gather"].value is True


def test_the_data_parallel_size_must_be_known():
    with pytest.raises(
        DataParallelSizeError, match=r"data_parallel_size=None.*Set it to world_size / \(tp\*pp\*cp\)"
    ):
        resolve_overlap({}, ParallelLayout(distributed_optimizer=True))


def test_without_the_distributed_optimizer_a_data_parallel_request_is_rejecting_rules():
    decision = resolve_overlap({"overlap_grad_reduce": True}, ParallelLayout(dp=8))["overlap_grad_reduce"]
    assert (decision.value, decision.rule, decision.rejected) == (None, "O22", True)


def test_deferring_the_embedding_gradient_defers_all_microbatches():
    assert values({"defer_embedding_wgrad_compute": True})["wgrad_deferral_limit"] == 0
    assert (
        values({"defer_embedding_wgrad_compute": True, "wgrad_deferral_limit": 3})["wgrad_deferral_limit"]
        == 3
    )


@pytest.mark.parametrize("name", ["overlap_moe_expert_parallel_comm", "delay_wgrad_compute"])
def test_expert_overlap_is_decided_only_on_request(name):
    assert name not in values({})
    assert values({name: True})[name] is True
