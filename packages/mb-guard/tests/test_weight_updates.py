"""Faults of the update of weights: each is there without its correction, and absent with it."""

import pytest

from mb_guard.catalogue import find_fault
from mb_guard.fault import Settings


def test_muon_orthogonalizes_parts(run_case):
    assert run_case("case_weight_updates.py", "muon_of_a_part", "duplicated") == pytest.approx([0], abs=1e-5)
    assert run_case("case_weight_updates.py", "muon_of_a_part", "blockwise")[0] > 0.2


_BIASES = 2 * 2 * 32  # of the second projection, of two experts in two layers
_EXPERTS = 2 * 4 * (2 * 32 * 24 + 24)  # without these biases


@pytest.mark.parametrize(("expert_ranks", "counted_in_addition"), [(2, -_BIASES), (1, _EXPERTS)])
def test_a_layer_wise_optimizer_counts_all_experts_once(expert_ranks, counted_in_addition, run_case):
    def counted(fault):
        return run_case("case_weight_updates.py", "counted_layer_wise", fault, expert_ranks, ranks=2)[0]

    parameters, ones, zeros = counted(None)
    assert (ones, zeros) == (parameters, parameters)
    parameters, ones, zeros = counted("layer-wise-norm-leaves-out-experts")
    assert ones == zeros == parameters + counted_in_addition


@pytest.mark.parametrize(("expert_overflow", "wrong"), [(False, (8.0, 1.0, 0.5)), (True, (16.0, 1.0, 2.0))])
def test_all_gradients_are_unscaled_by_the_scale_of_the_loss(expert_overflow, wrong, run_case):
    def unscaled(fault):
        return run_case("case_weight_updates.py", "unscaled_ones", fault, expert_overflow, ranks=2)

    assert unscaled(None) == [(8.0, 1.0, 1.0)] * 2
    assert unscaled("loss-scales-of-chained-optimizers") == [wrong] * 2


def test_embeddings_decay(run_case):
    assert run_case("case_weight_updates.py", "decay_of_embedding") == [1.0], (
        "0, as documented: delete the record"
    )


def test_a_rank_clips_its_own_heads(run_case):
    from mb_host import RankFailedError

    assert run_case("case_weight_updates.py", "clipped", None) == pytest.approx([0], abs=1e-6)
    with pytest.raises(RankFailedError, match="must match the size"):
        run_case("case_weight_updates.py", "clipped", "clip-under-tensor-parallelism")


@pytest.mark.parametrize(
    ("fault", "meets", "without"),
    [
        (
            "muon-update-of-a-part",
            {"optimizer": "muon", "tensor_model_parallel_size": 2},
            {"optimizer": "muon", "tensor_model_parallel_size": 2, "muon_tp_mode": "duplicated"},
        ),
        (
            "muon-update-of-a-part",
            {
                "optimizer": "muon",
                "tensor_model_parallel_size": 4,
                "num_query_groups": 2,
                "muon_tp_mode": "duplicated",
            },
            {"optimizer": "adam", "tensor_model_parallel_size": 4, "num_query_groups": 2},
        ),
        (
            "layer-wise-norm-leaves-out-experts",
            {
                "optimizer": "dist_muon",
                "num_moe_experts": 4,
                "tensor_model_parallel_size": 2,
                "expert_tensor_parallel_size": 1,
            },
            {"optimizer": "dist_muon", "num_moe_experts": 4, "tensor_model_parallel_size": 2},
        ),
        (
            "layer-wise-norm-leaves-out-experts",
            {
                "optimizer": "dist_muon",
                "num_moe_experts": 4,
                "add_bias_linear": False,
                "tensor_model_parallel_size": 2,
                "expert_tensor_parallel_size": 1,
            },
            {
                "optimizer": "dist_muon",
                "num_moe_experts": 4,
                "add_bias_linear": False,
                "tensor_model_parallel_size": 2,
                "expert_tensor_parallel_size": 1,
                "expert_model_parallel_size": 2,
            },
        ),
        (
            "loss-scales-of-chained-optimizers",
            {"fp16": True, "num_moe_experts": 4, "expert_model_parallel_size": 2},
            {"fp16": True, "num_moe_experts": 4, "expert_model_parallel_size": 2, "loss_scale": 1024.0},
        ),
        (
            "loss-scales-of-chained-optimizers",
            {"fp16": True, "overlap_param_gather_with_optimizer_step": True},
            {"bf16": True, "num_moe_experts": 4, "expert_model_parallel_size": 2},
        ),
        (
            "embedding-weight-decay",
            {"embedding_init_method_std": 1.0},
            {"embedding_init_method_std": 0.01, "init_method_std": 0.01},
        ),
        (
            "clip-under-tensor-parallelism",
            {"qk_clip": True, "tensor_model_parallel_size": 2},
            {"qk_clip": True},
        ),
        (
            "expert-padding-too-short",
            {
                "moe_router_padding_for_quantization": True,
                "fp8_recipe": "mxfp8",
                "seq_length": 4096,
                "micro_batch_size": 1,
                "context_parallel_size": 3,
            },
            {
                "moe_router_padding_for_quantization": True,
                "fp8_recipe": "mxfp8",
                "seq_length": 4096,
                "micro_batch_size": 1,
            },
        ),
    ],
)
def test_settings_that_meet_a_fault(fault, meets, without):
    met = find_fault(fault).met
    assert met(Settings(meets))
    assert not met(Settings(without))
