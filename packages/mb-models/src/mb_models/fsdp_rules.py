"""Rules on torch's FSDP2 and Megatron-FSDP, and their error."""

from collections.abc import Callable

from mb_models.rule import Rule

TORCH = "dist.use_torch_fsdp2"
MEGATRON = ("ddp.use_megatron_fsdp", "dist.use_megatron_fsdp")


class FsdpError(ValueError):
    """A model, layout or setting that the selected kind of sharding does not support."""


def _with_fsdp2(message: str) -> Callable[..., str | None]:
    """Return a test that rejects any of the further values together with FSDP2."""
    return lambda on, *values: message if on and any(value not in (None, False) for value in values) else None


def _no_experts(on: bool | None, experts: int | None, ep: int | None) -> str | None:
    if not on or (not experts and (ep or 1) == 1):
        return None
    return f"is on with num_moe_experts={experts}, expert_model_parallel_size={ep}"


def _one_stage(on: bool | None, also_on: bool | None, pp: int | None) -> str | None:
    return f"is on with pipeline_model_parallel_size={pp}" if (on or also_on) and (pp or 1) > 1 else None


def _without_adapters(on: bool | None, also_on: bool | None, adapters: object) -> str | None:
    return "is on with adapters" if (on or also_on) and adapters not in (None, False) else None


def _unscaled(on: bool | None, also_on: bool | None, half: bool | None, scale: float | None) -> str | None:
    if not (on or also_on) or (not half and scale is None):
        return None
    return f"is on with fp16={half}, loss_scale={scale}"


def _one_group(on: bool | None, also_on: bool | None, groups: int | None, outer: str | None) -> str | None:
    if not (on or also_on) or ((groups or 1) == 1 and outer != "optim"):
        return None
    return f"is on with num_distributed_optimizer_instances={groups}, outer_dp_sharding_strategy={outer}"


RULES: tuple[Rule, ...] = (
    Rule(
        id="FS01",
        fields=(TORCH, "model.num_moe_experts", "model.expert_model_parallel_size"),
        test=_no_experts,
        why="FSDP2 would mix the experts of expert-parallel ranks, and Megatron Core's checkpoints treat its "
        "shards of experts as copies",
        fix="Use ddp.use_distributed_optimizer=true instead, or a model without experts.",
        fails={TORCH: True, "model.num_moe_experts": 4, "model.expert_model_parallel_size": 1},
        passes={TORCH: True, "model.num_moe_experts": None, "model.expert_model_parallel_size": 1},
    ),
    Rule(
        id="FS02",
        fields=(TORCH, "model.share_embeddings_and_output_weights"),
        test=_with_fsdp2("is on with a tied embedding"),
        why="FSDP2 reshards the embedding's weight before the output layer reads it",
        fix="Set model.share_embeddings_and_output_weights=false, or use ddp.use_distributed_optimizer=true instead.",
        fails={TORCH: True, "model.share_embeddings_and_output_weights": True},
        passes={TORCH: True, "model.share_embeddings_and_output_weights": False},
    ),
    Rule(
        id="FS03",
        fields=(TORCH, "ddp.use_distributed_optimizer", "optimizer.use_distributed_optimizer"),
        test=_with_fsdp2("is on with the distributed optimizer"),
        why="FSDP2 already shards the optimizer's state with the weights",
        fix="Set ddp.use_distributed_optimizer=false and optimizer.use_distributed_optimizer=false.",
        fails={
            TORCH: True,
            "ddp.use_distributed_optimizer": True,
            "optimizer.use_distributed_optimizer": True,
        },
        passes={
            TORCH: True,
            "ddp.use_distributed_optimizer": False,
            "optimizer.use_distributed_optimizer": False,
        },
    ),
    Rule(
        id="FS04",
        fields=(TORCH, "model.fp16", "model.gradient_accumulation_fusion"),
        test=_with_fsdp2("is on with fp16 or gradient_accumulation_fusion"),
        why="Megatron Core neither unscales its gradients nor writes into its gradient buffers",
        fix="Use bf16, and set model.gradient_accumulation_fusion=false.",
        fails={TORCH: True, "model.fp16": True, "model.gradient_accumulation_fusion": False},
        passes={TORCH: True, "model.fp16": False, "model.gradient_accumulation_fusion": False},
    ),
    Rule(
        id="FS05",
        fields=(*MEGATRON, "model.pipeline_model_parallel_size"),
        test=_one_stage,
        why="Megatron-FSDP builds a mesh of all ranks that has no dimension for pipeline stages",
        fix="Set model.pipeline_model_parallel_size=1, or use dist.use_torch_fsdp2=true.",
        fails={MEGATRON[0]: True, MEGATRON[1]: True, "model.pipeline_model_parallel_size": 2},
        passes={MEGATRON[0]: True, MEGATRON[1]: True, "model.pipeline_model_parallel_size": 1},
    ),
    Rule(
        id="FS06",
        fields=(TORCH, "train.check_weight_hash_across_dp_replicas_interval"),
        test=_with_fsdp2("is on, but the weights of replicas are compared"),
        why="every rank holds a different shard of the weights",
        fix="Set train.check_weight_hash_across_dp_replicas_interval=null.",
        fails={TORCH: True, "train.check_weight_hash_across_dp_replicas_interval": 100},
        passes={TORCH: True, "train.check_weight_hash_across_dp_replicas_interval": None},
    ),
    Rule(
        id="FS07",
        fields=(TORCH, "model.hybrid_layer_pattern", "model.vision_num_layers", "model.decoder_seq_length"),
        test=_with_fsdp2("is on with a model that is no GPT"),
        why="checkpoints of hybrid models do not support shards, and other families are untested",
        fix="Use ddp.use_distributed_optimizer=true instead.",
        fails={
            TORCH: True,
            "model.hybrid_layer_pattern": "M-*-",
            "model.vision_num_layers": None,
            "model.decoder_seq_length": None,
        },
        passes={
            TORCH: True,
            "model.hybrid_layer_pattern": None,
            "model.vision_num_layers": None,
            "model.decoder_seq_length": None,
        },
    ),
    Rule(
        id="FS08",
        fields=(TORCH, "peft"),
        test=_with_fsdp2("is on with adapters"),
        why="checkpoints of adapters do not support shards",
        fix="Use ddp.use_distributed_optimizer=true instead.",
        fails={TORCH: True, "peft": {}},
        passes={TORCH: True, "peft": None},
    ),
    Rule(
        id="FS09",
        fields=(*MEGATRON, "peft"),
        test=_without_adapters,
        why="the weights under adapters are read from a checkpoint of unsharded weights, which cannot be loaded "
        "into its shards",
        fix="Use ddp.use_distributed_optimizer=true instead.",
        fails={MEGATRON[0]: True, MEGATRON[1]: True, "peft": {}},
        passes={MEGATRON[0]: True, MEGATRON[1]: True, "peft": None},
    ),
    Rule(
        id="FS10",
        fields=(*MEGATRON, "ddp.num_distributed_optimizer_instances", "ddp.outer_dp_sharding_strategy"),
        test=_one_group,
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
        test=_unscaled,
        why="Megatron Core unscales the gradient of every parameter, and fails on a rank that has no elements of "
        "one",
        fix="Use bf16, and leave optimizer.loss_scale=null.",
        fails={MEGATRON[0]: True, MEGATRON[1]: True, "model.fp16": True, "optimizer.loss_scale": None},
        passes={MEGATRON[0]: True, MEGATRON[1]: True, "model.fp16": False, "optimizer.loss_scale": None},
    ),
)
