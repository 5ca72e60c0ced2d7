"""What cannot be sharded by torch's FSDP2 or by Megatron-FSDP: rules as data."""

from collections.abc import Callable

from mb_models.rule import Rule

TORCH = "dist.use_torch_fsdp2"
MEGATRON = ("ddp.use_megatron_fsdp", "dist.use_megatron_fsdp")


def _with_torch(says: str) -> Callable[..., str | None]:
    """Return a test that refuses any of the further values beside FSDP2."""
    return lambda on, *values: says if on and any(values) else None


def _experts_apart(on: bool | None, ep: int | None) -> str | None:
    return f"is on with expert_model_parallel_size={ep}" if on and (ep or 1) > 1 else None


def _one_stage(on: bool | None, also_on: bool | None, pp: int | None) -> str | None:
    return f"is on with pipeline_model_parallel_size={pp}" if (on or also_on) and (pp or 1) > 1 else None


RULES: tuple[Rule, ...] = (
    Rule(
        id="FS01",
        fields=(TORCH, "model.expert_model_parallel_size"),
        test=_experts_apart,
        why="it shards every weight over all data-parallel ranks, and would mix experts that are different ones",
        fix="Use Megatron-FSDP (ddp.use_megatron_fsdp=true), or set model.expert_model_parallel_size=1.",
        fails={TORCH: True, "model.expert_model_parallel_size": 2},
        passes={TORCH: True, "model.expert_model_parallel_size": 1},
    ),
    Rule(
        id="FS02",
        fields=(TORCH, "model.share_embeddings_and_output_weights"),
        test=_with_torch("is on with a tied embedding"),
        why="it has sharded the embedding's weight again when the output layer reads it",
        fix="Use Megatron-FSDP (ddp.use_megatron_fsdp=true), or set model.share_embeddings_and_output_weights=false.",
        fails={TORCH: True, "model.share_embeddings_and_output_weights": True},
        passes={TORCH: True, "model.share_embeddings_and_output_weights": False},
    ),
    Rule(
        id="FS03",
        fields=(TORCH, "ddp.use_distributed_optimizer", "optimizer.use_distributed_optimizer"),
        test=_with_torch("is on with the distributed optimizer"),
        why="it has sharded the optimizer's state with the weights already",
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
        test=_with_torch("is on with fp16 or gradient_accumulation_fusion"),
        why="Megatron Core neither unscales its gradients nor writes into its gradient buffers",
        fix="Use bf16, and set model.gradient_accumulation_fusion=false.",
        fails={TORCH: True, "model.fp16": True, "model.gradient_accumulation_fusion": False},
        passes={TORCH: True, "model.fp16": False, "model.gradient_accumulation_fusion": False},
    ),
    Rule(
        id="FS05",
        fields=(*MEGATRON, "model.pipeline_model_parallel_size"),
        test=_one_stage,
        why="Megatron-FSDP puts the ranks of the world into a mesh that has no place for stages",
        fix="Set model.pipeline_model_parallel_size=1, or use dist.use_torch_fsdp2=true.",
        fails={MEGATRON[0]: True, MEGATRON[1]: True, "model.pipeline_model_parallel_size": 2},
        passes={MEGATRON[0]: True, MEGATRON[1]: True, "model.pipeline_model_parallel_size": 1},
    ),
    Rule(
        id="FS06",
        fields=(TORCH, "train.check_weight_hash_across_dp_replicas_interval"),
        test=_with_torch("is on, but weights of replicas are to be compared"),
        why="every rank holds another part of the weights",
        fix="Set train.check_weight_hash_across_dp_replicas_interval=null.",
        fails={TORCH: True, "train.check_weight_hash_across_dp_replicas_interval": 100},
        passes={TORCH: True, "train.check_weight_hash_across_dp_replicas_interval": None},
    ),
)
