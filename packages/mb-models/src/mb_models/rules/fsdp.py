"""Rules on torch's FSDP2 and Megatron-FSDP, and their error."""

from collections.abc import Callable

from mb_models.errors import ModelsError
from mb_schema.rule_kinds import implied_by, rule
from mb_schema.rules import Rule

TORCH = "dist.use_torch_fsdp2"
MEGATRON = ("ddp.use_megatron_fsdp", "dist.use_megatron_fsdp")


class FsdpError(ModelsError, ValueError):
    """A model, layout or setting that the selected kind of sharding does not support."""


def _rejected_with_fsdp2(message: str) -> Callable[..., str | None]:
    """Return a test that rejects any of the further values together with FSDP2."""

    def test(fsdp2: bool | None, *values: object) -> str | None:
        return message if fsdp2 and any(value not in (None, False) for value in values) else None

    return test


def _fsdp2_with_experts(fsdp2: bool | None, experts: int | None, ep: int | None) -> str | None:
    if not fsdp2 or (not experts and (ep or 1) == 1):
        return None
    return f"is on with num_moe_experts={experts}, expert_model_parallel_size={ep}"


def _megatron_fsdp_with_pipeline(by_ddp: bool | None, by_dist: bool | None, pp: int | None) -> str | None:
    return f"is on with pipeline_model_parallel_size={pp}" if (by_ddp or by_dist) and (pp or 1) > 1 else None


def _megatron_fsdp_with_adapters(by_ddp: bool | None, by_dist: bool | None, adapters: object) -> str | None:
    return "is on with adapters" if (by_ddp or by_dist) and adapters not in (None, False) else None


def _megatron_fsdp_with_loss_scaling(
    by_ddp: bool | None, by_dist: bool | None, half: bool | None, scale: float | None
) -> str | None:
    if not (by_ddp or by_dist) or (not half and scale is None):
        return None
    return f"is on with fp16={half}, loss_scale={scale}"


def _megatron_fsdp_with_optimizer_instances(
    by_ddp: bool | None, by_dist: bool | None, groups: int | None, outer: str | None
) -> str | None:
    if not (by_ddp or by_dist) or ((groups or 1) == 1 and outer != "optim"):
        return None
    return f"is on with num_distributed_optimizer_instances={groups}, outer_dp_sharding_strategy={outer}"


RULES: tuple[Rule, ...] = (
    rule(
        "FS01",
        (TORCH, "model.num_moe_experts", "model.expert_model_parallel_size"),
        _fsdp2_with_experts,
        why="FSDP2 would mix the experts of expert-parallel ranks, and Megatron Core's checkpoints treat its "
        "shards of experts as copies",
        fix="Use ddp.use_distributed_optimizer=true instead, or a model without experts.",
        fails=(True, 4, 1),
        passes=(True, None, 1),
    ),
    rule(
        "FS02",
        (TORCH, "model.share_embeddings_and_output_weights"),
        _rejected_with_fsdp2("is on with a tied embedding"),
        why="FSDP2 reshards the embedding's weight before the output layer reads it",
        fix="Set model.share_embeddings_and_output_weights=false, or use ddp.use_distributed_optimizer=true instead.",
        fails=(True, True),
        passes=(True, False),
    ),
    implied_by(
        "V120",
        rule(
            "FS03",
            (TORCH, "ddp.use_distributed_optimizer", "optimizer.use_distributed_optimizer"),
            _rejected_with_fsdp2("is on with the distributed optimizer"),
            why="FSDP2 already shards the optimizer's state with the weights",
            fix="Set ddp.use_distributed_optimizer=false and optimizer.use_distributed_optimizer=false.",
            fails=(True, True, True),
            passes=(True, False, False),
        ),
    ),
    rule(
        "FS04",
        (TORCH, "model.fp16", "model.gradient_accumulation_fusion"),
        _rejected_with_fsdp2("is on with fp16 or gradient_accumulation_fusion"),
        why="Megatron Core neither unscales its gradients nor writes into its gradient buffers",
        fix="Use bf16, and set model.gradient_accumulation_fusion=false.",
        fails=(True, True, False),
        passes=(True, False, False),
    ),
    Rule(
        id="FS05",
        fields=(*MEGATRON, "model.pipeline_model_parallel_size"),
        test=_megatron_fsdp_with_pipeline,
        why="Megatron-FSDP builds a mesh of all ranks that has no dimension for pipeline stages",
        fix="Set model.pipeline_model_parallel_size=1, or use dist.use_torch_fsdp2=true.",
        fails={MEGATRON[0]: True, MEGATRON[1]: True, "model.pipeline_model_parallel_size": 2},
        passes={MEGATRON[0]: True, MEGATRON[1]: True, "model.pipeline_model_parallel_size": 1},
    ),
    rule(
        "FS06",
        (TORCH, "train.check_weight_hash_across_dp_replicas_interval"),
        _rejected_with_fsdp2("is on, but the weights of replicas are compared"),
        why="every rank holds a different shard of the weights",
        fix="Set train.check_weight_hash_across_dp_replicas_interval=null.",
        fails=(True, 100),
        passes=(True, None),
    ),
    rule(
        "FS07",
        (TORCH, "model.hybrid_layer_pattern", "model.vision_num_layers", "model.decoder_seq_length"),
        _rejected_with_fsdp2("is on with a model that is not a GPT"),
        why="checkpoints of hybrid models do not support shards, and other families are untested",
        fix="Use ddp.use_distributed_optimizer=true instead.",
        fails=(True, "M-*-", None, None),
        passes=(True, None, None, None),
    ),
    rule(
        "FS08",
        (TORCH, "peft"),
        _rejected_with_fsdp2("is on with adapters"),
        why="checkpoints of adapters do not support shards",
        fix="Use ddp.use_distributed_optimizer=true instead.",
        fails=(True, {}),
        passes=(True, None),
    ),
    Rule(
        id="FS09",
        fields=(*MEGATRON, "peft"),
        test=_megatron_fsdp_with_adapters,
        why="the weights under adapters are read from a checkpoint of unsharded weights, which cannot be loaded "
        "into its shards",
        fix="Use ddp.use_distributed_optimizer=true instead.",
        fails={MEGATRON[0]: True, MEGATRON[1]: True, "peft": {}},
        passes={MEGATRON[0]: True, MEGATRON[1]: True, "peft": None},
    ),
    Rule(
        id="FS10",
        fields=(*MEGATRON, "ddp.num_distributed_optimizer_instances", "ddp.outer_dp_sharding_strategy"),
        test=_megatron_fsdp_with_optimizer_instances,
        why="training and checkpoints with several groups of ranks that each hold a model are untested, and a "
        "checkpoint does not record the position of shards that are divided again between the groups",
        fix="Set ddp.num_distributed_optimizer_instances=1 and ddp.outer_dp_sharding_strategy=no_shard.",
        fails={
            MEGATRON[0]: True,
            MEGATRON[1]: True,
            "ddp.num_distributed_optimizer_instances": 2,
            "ddp.outer_dp_sharding_strategy": "no_shard",
        },
        passes={
            MEGATRON[0]: True,
            MEGATRON[1]: True,
            "ddp.num_distributed_optimizer_instances": 1,
            "ddp.outer_dp_sharding_strategy": "no_shard",
        },
    ),
    Rule(
        id="FS11",
        fields=(*MEGATRON, "model.fp16", "optimizer.loss_scale"),
        test=_megatron_fsdp_with_loss_scaling,
        why="Megatron Core unscales the gradient of every parameter, and fails on a rank that has no elements of "
        "one",
        fix="Use bf16, and leave optimizer.loss_scale=null.",
        fails={MEGATRON[0]: True, MEGATRON[1]: True, "model.fp16": True, "optimizer.loss_scale": None},
        passes={MEGATRON[0]: True, MEGATRON[1]: True, "model.fp16": False, "optimizer.loss_scale": None},
    ),
)
