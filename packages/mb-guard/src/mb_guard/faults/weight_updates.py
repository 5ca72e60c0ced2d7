"""Faults of the update of weights: Muon under tensor parallelism, weight decay of embeddings, clipping, loss scales."""

from typing import Any

from mb_guard.fault import Fault, Function, Patch, Settings, around
from mb_guard.faults.rewriting import rewritten

_TESTS = "packages/mb-guard/tests/test_weight_updates.py"
_LAYER_WISE = "megatron.core.optimizer.layer_wise_optimizer"
_DEFAULT_INIT_STD = 0.02


@around
def clip_own_heads(clip: Function, self: Any, weight: Any) -> Any:
    """Divide the weight of this rank into the query groups of this rank, not into those of all ranks."""
    complete = self.query_projection_size, self.kv_projection_size
    self.query_projection_size = self.hidden_size_per_attention_head * self.num_attention_heads_per_partition
    self.kv_projection_size = self.hidden_size_per_attention_head * self.num_query_groups_per_partition
    try:
        return clip(self, weight)
    finally:
        self.query_projection_size, self.kv_projection_size = complete


@around
def pass_tensor_parallel_groups(
    init: Function,
    self: Any,
    optimizers: Any,
    config: Any,
    pg_collection: Any = None,
    *args: Any,
    **options: Any,
) -> None:
    """Give the optimizers that are sharded by layers the groups by which they recognize copies of parameters."""
    init(self, optimizers, config, pg_collection, *args, **options)
    for part in self.chained_optimizers if pg_collection is not None else ():
        part.tp_group = pg_collection.tp
        part.expert_tp_group = getattr(pg_collection, "expt_tp", pg_collection.tp)


def shard_copies_of_experts(shard_params: Function) -> Function:
    """Shard experts that have copies also where other parameters have none."""
    return rewritten(
        shard_params, ("if dp_cp_size == 1:", "if dp_cp_size == get_pg_size(self.expt_dp) == 1:")
    )


@around
def count_zeros_of_experts(count: Function, self: Any) -> Any:
    """Count zeros with the groups of `pass_tensor_parallel_groups`, over all ranks."""
    if self.pg_collection is None:
        return count(self)
    from megatron.core.optimizer.clip_grads import count_zeros_fp32

    return count_zeros_fp32(
        [each for part in self.chained_optimizers for each in part.get_parameters()],
        grad_stats_parallel_group=None,
        use_decoupled_grad=self.config.use_precision_aware_optimizer_no_fp8_or_ds_fp8,
        tp_group=self.pg_collection.tp,
        expert_tp_group=getattr(self.pg_collection, "expt_tp", self.pg_collection.tp),
    )


@around
def update_loss_scales_together(prepare_grads: Function, self: Any) -> bool:
    """Unscale all gradients by the scale of the loss, and update it by whether any gradient overflowed.

    All optimizers of a chain start from the scale of the first, by which the loss was multiplied.
    """
    scalers = [part.grad_scaler for part in self.chained_optimizers if getattr(part, "grad_scaler", None)]
    before = scalers[0].state_dict() if scalers else {}
    for scaler in scalers[1:]:
        scaler.load_state_dict(before)
    overflow = bool(prepare_grads(self))
    if overflow:
        for scaler in scalers:
            scaler.load_state_dict(before)
            scaler.update(True)
    return overflow


def _separate_loss_scales(settings: Settings) -> bool:
    experts = bool(settings.num_moe_experts) and (settings.expert_model_parallel_size or 1) > 1
    separate = experts or bool(settings.overlap_param_gather_with_optimizer_step)
    return bool(settings.fp16) and not settings.loss_scale and separate


def _experts_without_tensor_parallelism(settings: Settings) -> bool:
    ranks = settings.tensor_model_parallel_size or 1
    layer_wise = settings.use_layer_wise_distributed_optimizer or str(settings.optimizer).startswith("dist_")
    expert_ranks = settings.expert_tensor_parallel_size or ranks
    return (
        bool(layer_wise)
        and bool(settings.num_moe_experts)
        and expert_ranks != ranks
        and (
            settings.add_bias_linear is not False
            or expert_ranks * (settings.expert_model_parallel_size or 1) < ranks
        )
    )


def _depends_on_tensor_parallelism(settings: Settings) -> bool:
    ranks = settings.tensor_model_parallel_size or 1
    if ranks == 1 or settings.optimizer not in ("muon", "adaptive_muon", "dist_muon"):
        return False
    groups = settings.num_query_groups or settings.num_attention_heads or ranks
    return settings.muon_tp_mode in (None, "blockwise") or (
        settings.muon_split_qkv is not False and ranks > groups
    )


def _separate_embedding_init(settings: Settings) -> bool:
    std = settings.embedding_init_method_std
    # Megatron's configuration object has that of the other weights where none is set
    return std is not None and std != (settings.init_method_std or _DEFAULT_INIT_STD)


FAULTS = (
    Fault(
        id="muon-update-of-a-part",
        effect="wrong number",
        summary="Muon under tensor parallelism orthogonalizes the part of each rank by default "
        "(muon_tp_mode=blockwise), and does not split q, k and v where a rank has less than one query group.",
        shows="Silent: the update depends on tensor_model_parallel_size. A weight of 8 x 16 on two ranks: 27 % off.",
        action="warn",
        report="https://github.com/NVIDIA/Megatron-LM/pull/6326",
        test=f"{_TESTS}::test_muon_orthogonalizes_parts",
        met=_depends_on_tensor_parallelism,
        advice="Set muon_tp_mode=duplicated, and tensor_model_parallel_size to num_query_groups at most.",
    ),
    Fault(
        id="layer-wise-norm-leaves-out-experts",
        effect="wrong number",
        summary="The gradient norm of an optimizer that is sharded by layers (dist_muon) leaves out biases of experts "
        "where expert_tensor_parallel_size differs from tensor_model_parallel_size: those of all but the first "
        "tensor-parallel rank count as copies. Without data parallelism it counts each copy of an expert's weights.",
        shows="Silent: gradients are clipped less, or more, and the logged norm and number of zeros are wrong. With a "
        "TP and EP of 2 the biases of half of the experts are missing; with a TP of 2 alone, experts count twice.",
        action="put right",
        report="https://github.com/NVIDIA/Megatron-LM/pull/6099",
        test=f"{_TESTS}::test_a_layer_wise_optimizer_counts_all_experts_once",
        met=_experts_without_tensor_parallelism,
        patches=(
            Patch(
                wrap=pass_tensor_parallel_groups,
                module=_LAYER_WISE,
                target="LayerWiseDistributedOptimizer.__init__",
                sources=("959ae04c2806dc10",),
            ),
            Patch(
                wrap=shard_copies_of_experts,
                module=_LAYER_WISE,
                target="LayerWiseDistributedOptimizer.shard_params",
                sources=("aed5724f2f9d4846",),
            ),
            Patch(
                wrap=count_zeros_of_experts,
                module=_LAYER_WISE,
                target="LayerWiseDistributedOptimizer.count_zeros",
                sources=("533a36a0828dd38a",),
            ),
        ),
    ),
    Fault(
        id="loss-scales-of-chained-optimizers",
        effect="wrong number",
        summary="In float16, the optimizer of experts under expert parallelism (and that of the first chunk with "
        "overlap_param_gather_with_optimizer_step) has a dynamic loss scale of its own, which only its own overflows "
        "lower. The loss is multiplied by that of the other weights.",
        shows="Silent: after an overflow of dense weights alone the gradients of experts are half as large as they "
        "should be, also in the gradient norm, for the rest of the run. After one of experts alone they are twice as "
        "large, and the scale of the loss is not lowered: where they overflow again, no step updates the weights.",
        action="put right",
        report="https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/5591",
        test=f"{_TESTS}::test_all_gradients_are_unscaled_by_the_scale_of_the_loss",
        met=_separate_loss_scales,
        patches=(
            Patch(
                wrap=update_loss_scales_together,
                module="megatron.core.optimizer.optimizer",
                target="ChainedOptimizer.prepare_grads",
                sources=("d1f4912d8c92a940",),
            ),
        ),
    ),
    Fault(
        id="embedding-weight-decay",
        effect="wrong number",
        summary="embedding_init_method_std is documented to exempt embeddings from weight decay, and does not.",
        shows="Silent: the embedding decays with the weight decay of all matrices.",
        action="warn",
        report="https://github.com/NVIDIA/Megatron-LM/issues/3945",
        test=f"{_TESTS}::test_embeddings_decay",
        met=_separate_embedding_init,
        advice="Pass config_overrides with wd_mult=0 for embeddings to get_megatron_optimizer.",
    ),
    Fault(
        id="clip-under-tensor-parallelism",
        effect="crash",
        summary="qk_clip of attention without latent projections divides the weight of a tensor-parallel rank by the "
        "sizes of all ranks.",
        shows="RuntimeError: the size of tensor a must match the size of tensor b, in the first step whose logits "
        "exceed qk_clip_threshold; a run may have trained for days before.",
        action="put right",
        report="https://github.com/NVIDIA/Megatron-LM/pull/4646",
        test=f"{_TESTS}::test_a_rank_clips_its_own_heads",
        met=lambda settings: bool(settings.qk_clip) and (settings.tensor_model_parallel_size or 1) > 1,
        patches=(
            Patch(
                wrap=clip_own_heads,
                module="megatron.core.transformer.attention",
                target="SelfAttention._clip_linear_qkv",
                sources=("ca2cc2a4e2fd4bab",),
            ),
        ),
    ),
)
