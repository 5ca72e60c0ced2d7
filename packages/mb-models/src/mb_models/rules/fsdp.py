"""Rules on torch's FSDP2 and Megatron-FSDP, and their error."""

from collections.abc import Sequence
from typing import Any

from mb_models.errors import ModelsError
from mb_schema.rule_kinds import config_rule, ddp_rule, dist_rule, model_rule
from mb_schema.rules import Rule, rules_in

TORCH = "dist.use_torch_fsdp2"
MEGATRON = ("ddp.use_megatron_fsdp", "dist.use_megatron_fsdp")


class FsdpError(ModelsError, ValueError):
    """A model, layout or setting that the selected kind of sharding does not support."""


def _fsdp2_rule(id: str, message: str, paths: Sequence[str], **options: Any) -> Rule:
    """Return the rule that FSDP2 is off while any of these fields is set or on."""

    def rejected(dist__use_torch_fsdp2: bool | None, **values: object) -> str | None:
        if dist__use_torch_fsdp2 and any(value not in (None, False) for value in values.values()):
            return message
        return None

    return config_rule(id, others=paths, **options)(rejected)


@dist_rule(
    "FS01",
    why="FSDP2 would mix the experts of expert-parallel ranks, and Megatron Core's checkpoints treat its "
    "shards of experts as copies",
    fix="Use ddp.use_distributed_optimizer=true instead, or a model without experts.",
    fails={"use_torch_fsdp2": True, "model__num_moe_experts": 4, "ep": 1},
    passes={"model__num_moe_experts": None},
)
def _fsdp2_with_experts(use_torch_fsdp2, model__num_moe_experts, ep):
    if not use_torch_fsdp2 or (not model__num_moe_experts and (ep or 1) == 1):
        return None
    return f"is on with num_moe_experts={model__num_moe_experts}, expert_model_parallel_size={ep}"


@ddp_rule(
    "FS05",
    why="Megatron-FSDP builds a mesh of all ranks that has no dimension for pipeline stages",
    fix="Set model.pipeline_model_parallel_size=1, or use dist.use_torch_fsdp2=true.",
    fails={"use_megatron_fsdp": True, "pp": 2},
    passes={"pp": 1},
)
def _megatron_fsdp_with_pipeline(use_megatron_fsdp, dist__use_megatron_fsdp, pp):
    if (use_megatron_fsdp or dist__use_megatron_fsdp) and (pp or 1) > 1:
        return f"is on with pipeline_model_parallel_size={pp}"
    return None


@model_rule(
    "FS12",
    why="Megatron-FSDP lets Transformer Engine overwrite the sum of the gradients of the previous microbatches",
    fix="Set model.gradient_accumulation_fusion=false, or another ddp.data_parallel_sharding_strategy.",
    fails={
        "gradient_accumulation_fusion": True,
        "ddp__use_megatron_fsdp": True,
        "ddp__data_parallel_sharding_strategy": "optim",
    },
    passes={"ddp__data_parallel_sharding_strategy": "optim_grads"},
    fallback={"gradient_accumulation_fusion": False},
)
def _megatron_fsdp_with_fused_gradients(
    gradient_accumulation_fusion,
    ddp__use_megatron_fsdp,
    dist__use_megatron_fsdp,
    ddp__data_parallel_sharding_strategy,
):
    if (
        not gradient_accumulation_fusion
        or not (ddp__use_megatron_fsdp or dist__use_megatron_fsdp)
        or ddp__data_parallel_sharding_strategy != "optim"
    ):
        return None
    return "is on under Megatron-FSDP with data_parallel_sharding_strategy=optim"


@config_rule(
    "FS09",
    why="the weights under adapters are read from a checkpoint of unsharded weights, which cannot be loaded "
    "into its shards",
    fix="Use ddp.use_distributed_optimizer=true instead.",
    fails={"ddp__use_megatron_fsdp": True, "peft": {}},
    passes={"peft": None},
)
def _megatron_fsdp_with_adapters(ddp__use_megatron_fsdp, dist__use_megatron_fsdp, peft):
    if (ddp__use_megatron_fsdp or dist__use_megatron_fsdp) and peft not in (None, False):
        return "is on with adapters"
    return None


@ddp_rule(
    "FS11",
    why="Megatron Core unscales the gradient of every parameter, and fails on a rank that has no elements of "
    "one",
    fix="Use bf16, and leave optimizer.loss_scale=null.",
    fails={"use_megatron_fsdp": True, "model__fp16": True},
    passes={"model__fp16": False},
)
def _megatron_fsdp_with_loss_scaling(
    use_megatron_fsdp, dist__use_megatron_fsdp, model__fp16, optimizer__loss_scale
):
    if not (use_megatron_fsdp or dist__use_megatron_fsdp) or (
        not model__fp16 and optimizer__loss_scale is None
    ):
        return None
    return f"is on with fp16={model__fp16}, loss_scale={optimizer__loss_scale}"


@ddp_rule(
    "FS10",
    why="training and checkpoints with several groups of ranks that each hold a model are untested, and a "
    "checkpoint does not record the position of shards that are divided again between the groups",
    fix="Set ddp.num_distributed_optimizer_instances=1 and ddp.outer_dp_sharding_strategy=no_shard.",
    fails={
        "use_megatron_fsdp": True,
        "num_distributed_optimizer_instances": 2,
        "outer_dp_sharding_strategy": "no_shard",
    },
    passes={"num_distributed_optimizer_instances": 1},
)
def _megatron_fsdp_with_optimizer_instances(
    use_megatron_fsdp,
    dist__use_megatron_fsdp,
    num_distributed_optimizer_instances,
    outer_dp_sharding_strategy,
):
    if not (use_megatron_fsdp or dist__use_megatron_fsdp) or (
        (num_distributed_optimizer_instances or 1) == 1 and outer_dp_sharding_strategy != "optim"
    ):
        return None
    return (
        f"is on with num_distributed_optimizer_instances={num_distributed_optimizer_instances}, "
        f"outer_dp_sharding_strategy={outer_dp_sharding_strategy}"
    )


RULES: tuple[Rule, ...] = (
    *rules_in(globals()),
    _fsdp2_rule(
        "FS02",
        "is on with a tied embedding",
        ["model.share_embeddings_and_output_weights"],
        why="FSDP2 reshards the embedding's weight before the output layer reads it",
        fix="Set model.share_embeddings_and_output_weights=false, or use ddp.use_distributed_optimizer=true instead.",
        fails={"dist__use_torch_fsdp2": True, "model.share_embeddings_and_output_weights": True},
        passes={"model.share_embeddings_and_output_weights": False},
    ),
    _fsdp2_rule(
        "FS03",
        "is on with the distributed optimizer",
        ["ddp.use_distributed_optimizer", "optimizer.use_distributed_optimizer"],
        why="FSDP2 already shards the optimizer's state with the weights",
        fix="Set ddp.use_distributed_optimizer=false and optimizer.use_distributed_optimizer=false.",
        fails={"dist__use_torch_fsdp2": True, "ddp.use_distributed_optimizer": True},
        passes={"ddp.use_distributed_optimizer": False},
        implied_by="V120",
    ),
    _fsdp2_rule(
        "FS04",
        "is on with fp16 or gradient_accumulation_fusion",
        ["model.fp16", "model.gradient_accumulation_fusion"],
        why="Megatron Core neither unscales its gradients nor writes into its gradient buffers",
        fix="Use bf16, and set model.gradient_accumulation_fusion=false.",
        fails={"dist__use_torch_fsdp2": True, "model.fp16": True},
        passes={"model.fp16": False},
    ),
    _fsdp2_rule(
        "FS06",
        "is on, but the weights of replicas are compared",
        ["train.check_weight_hash_across_dp_replicas_interval"],
        why="every rank holds a different shard of the weights",
        fix="Set train.check_weight_hash_across_dp_replicas_interval=null.",
        fails={"dist__use_torch_fsdp2": True, "train.check_weight_hash_across_dp_replicas_interval": 100},
        passes={"train.check_weight_hash_across_dp_replicas_interval": None},
    ),
    _fsdp2_rule(
        "FS07",
        "is on with a model that is not a GPT",
        ["model.hybrid_layer_pattern", "model.vision_num_layers", "model.decoder_seq_length"],
        why="checkpoints of hybrid models do not support shards, and other families are untested",
        fix="Use ddp.use_distributed_optimizer=true instead.",
        fails={"dist__use_torch_fsdp2": True, "model.hybrid_layer_pattern": "M-*-"},
        passes={"model.hybrid_layer_pattern": None},
    ),
    _fsdp2_rule(
        "FS08",
        "is on with adapters",
        ["peft"],
        why="checkpoints of adapters do not support shards",
        fix="Use ddp.use_distributed_optimizer=true instead.",
        fails={"dist__use_torch_fsdp2": True, "peft": {}},
        passes={"peft": None},
    ),
)
