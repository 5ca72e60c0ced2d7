"""Rules on dtypes, loss scaling and what Megatron Core's optimizer and wrapper accept."""

from __future__ import annotations

from mb_config.rules.rule import Rule

DTYPES = ("float64", "float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "uint8")
_MOMENTS = (
    "optimizer.main_grads_dtype",
    "optimizer.main_params_dtype",
    "optimizer.exp_avg_dtype",
    "optimizer.exp_avg_sq_dtype",
)


def _both(first: object, second: object) -> str | None:
    return "fp16 and bf16 are both on" if first and second else None


def _v015(fp8: str | None, fp4: str | None) -> str | None:
    return f"fp8={fp8} comes beside fp4={fp4}" if fp8 and fp4 else None


def _twins(param: bool | None, gather: bool | None) -> str | None:
    if param is None or gather is None or param == gather:
        return None
    return f"is {str(param).lower()}, but its twin is {str(gather).lower()}"


def _dtypes(*names: str | None) -> str | None:
    wrong = [name for name in names if name is not None and name not in DTYPES]
    return f"{wrong[0]!r} is none of {', '.join(DTYPES)}" if wrong else None


def _v147(
    aware: bool | None, model_bf16: object, model_fp16: object, bf16: object, fp16: object
) -> str | None:
    if not aware or (bool(model_bf16), bool(model_fp16)) == (bool(bf16), bool(fp16)):
        return None
    return f"the model has bf16={model_bf16} fp16={model_fp16}, the optimizer bf16={bf16} fp16={fp16}"


def _v122(gather: bool | None, recipe: str | None, reuse: bool | None) -> str | None:
    if not gather or recipe != "mxfp8" or reuse:
        return None
    return "fp8_param_gather with fp8_recipe=mxfp8 does not reuse the gradient buffer"


def _implied(on: object, needed: object, name: str) -> str | None:
    return f"needs {name}" if on and not needed else None


def _low_precision(aware: bool | None, *dtypes: str | None) -> str | None:
    low = [dtype for dtype in dtypes if dtype not in (None, "float32")]
    return f"needs use_precision_aware_optimizer ({low[0]})" if low and not aware else None


def _aware(aware: bool | None, sharded: bool | None, algorithm: str | None) -> str | None:
    if not aware:
        return None
    if algorithm != "adam":
        return f"knows no optimizer={algorithm}"
    return None if sharded else "needs use_distributed_optimizer"


def _patterns(patterns: tuple[str, ...] | None, fp32: bool | None) -> str | None:
    return f"{list(patterns)} come beside grad_reduce_in_fp32" if patterns and fp32 else None


def _buckets(count: int | None, size: int | None) -> str | None:
    if count is None:
        return None
    if count < 1:
        return f"must be at least 1, not {count}"
    return f"{count} comes beside bucket_size={size}" if size is not None else None


def _v148(offloading: bool | None, implementation: str | None) -> str | None:
    if not offloading or implementation in (None, "transformer_engine"):
        return None
    return f"needs model.transformer_impl=transformer_engine, not {implementation}"


RECIPE_RULES: tuple[Rule, ...] = (
    Rule(
        id="V013",
        fields=("mixed_precision.fp8_param", "mixed_precision.fp8_param_gather"),
        test=_twins,
        why="the two are names of one switch",
        fix="Set only mixed_precision.fp8_param_gather.",
        fails={"mixed_precision.fp8_param": True, "mixed_precision.fp8_param_gather": False},
        passes={"mixed_precision.fp8_param": True, "mixed_precision.fp8_param_gather": True},
    ),
    Rule(
        id="V014",
        fields=("mixed_precision.fp4_param", "mixed_precision.fp4_param_gather"),
        test=_twins,
        why="the two are names of one switch",
        fix="Set only mixed_precision.fp4_param_gather.",
        fails={"mixed_precision.fp4_param": True, "mixed_precision.fp4_param_gather": False},
        passes={"mixed_precision.fp4_param": True, "mixed_precision.fp4_param_gather": True},
    ),
    Rule(
        id="V015",
        fields=("mixed_precision.fp8", "mixed_precision.fp4"),
        test=_v015,
        why="a product is computed in one of the two",
        fix="Set one of them to null.",
        fails={"mixed_precision.fp8": "hybrid", "mixed_precision.fp4": "e2m1"},
        passes={"mixed_precision.fp8": "hybrid", "mixed_precision.fp4": None},
    ),
    Rule(
        id="V122",
        fields=(
            "mixed_precision.fp8_param_gather",
            "mixed_precision.fp8_recipe",
            "mixed_precision.reuse_grad_buf_for_mxfp8_param_ag",
        ),
        test=_v122,
        why="MXFP8 parameters are gathered through it",
        fix="Set mixed_precision.reuse_grad_buf_for_mxfp8_param_ag=true or fp8_param_gather=false.",
        fails={"mixed_precision.fp8_param_gather": True, "mixed_precision.fp8_recipe": "mxfp8"},
        passes={"mixed_precision.fp8_param_gather": True, "mixed_precision.fp8_recipe": "tensorwise"},
    ),
    Rule(
        id="D01",
        fields=(
            "mixed_precision.params_dtype",
            "mixed_precision.pipeline_dtype",
            "mixed_precision.autocast_dtype",
        ),
        test=_dtypes,
        why="torch knows no other dtype for it",
        fix="Use a name from the list.",
        fails={"mixed_precision.params_dtype": "bf16"},
        passes={"mixed_precision.params_dtype": "bfloat16"},
    ),
)

OPTIMIZER_RULES: tuple[Rule, ...] = (
    Rule(
        id="V146",
        fields=("optimizer.fp16", "optimizer.bf16"),
        test=_both,
        why="a model computes in one of the two",
        fix="Switch one of them off.",
        fails={"optimizer.fp16": True, "optimizer.bf16": True},
        passes={"optimizer.bf16": True},
    ),
    Rule(
        id="V051",
        fields=("optimizer.use_precision_aware_optimizer", *_MOMENTS),
        test=_low_precision,
        why="only the precision-aware optimizer keeps its state below float32",
        fix="Set optimizer.use_precision_aware_optimizer=true, or float32.",
        fails={"optimizer.exp_avg_dtype": "bfloat16"},
        passes={"optimizer.use_precision_aware_optimizer": True, "optimizer.exp_avg_dtype": "bfloat16"},
    ),
    Rule(
        id="V051a",
        fields=(
            "optimizer.use_precision_aware_optimizer",
            "optimizer.use_distributed_optimizer",
            "optimizer.optimizer",
        ),
        test=_aware,
        why="it is a form of Adam that works on sharded state",
        fix="Set optimizer.optimizer=adam and optimizer.use_distributed_optimizer=true, or switch it off.",
        fails={"optimizer.use_precision_aware_optimizer": True, "optimizer.optimizer": "sgd"},
        passes={
            "optimizer.use_precision_aware_optimizer": True,
            "optimizer.use_distributed_optimizer": True,
            "optimizer.optimizer": "adam",
        },
    ),
    Rule(
        id="V051b",
        fields=(
            "optimizer.overlap_param_gather_with_optimizer_step",
            "optimizer.reuse_grad_buf_for_mxfp8_param_ag",
        ),
        test=lambda early, reuse: (
            "does not go with reuse_grad_buf_for_mxfp8_param_ag" if early and reuse else None
        ),
        why="the gather would use the gradient buffer while the step still reads it",
        fix="Switch one of the two off.",
        fails={
            "optimizer.overlap_param_gather_with_optimizer_step": True,
            "optimizer.reuse_grad_buf_for_mxfp8_param_ag": True,
        },
        passes={"optimizer.overlap_param_gather_with_optimizer_step": True},
    ),
    Rule(
        id="D02",
        fields=("optimizer.params_dtype", *_MOMENTS),
        test=_dtypes,
        why="torch knows no other dtype for it",
        fix="Use a name from the list.",
        fails={"optimizer.params_dtype": "bf16"},
        passes={"optimizer.params_dtype": "bfloat16"},
    ),
)

DDP_RULES: tuple[Rule, ...] = (
    Rule(
        id="V050",
        fields=("ddp.reuse_grad_buf_for_mxfp8_param_ag", "ddp.fp8_param_gather"),
        test=lambda reuse, gather: _implied(reuse, gather, "fp8_param_gather"),
        why="the buffer is shared with the gather of FP8 parameters",
        fix="Set ddp.fp8_param_gather=true or ddp.reuse_grad_buf_for_mxfp8_param_ag=false.",
        fails={"ddp.reuse_grad_buf_for_mxfp8_param_ag": True},
        passes={"ddp.reuse_grad_buf_for_mxfp8_param_ag": True, "ddp.fp8_param_gather": True},
    ),
    Rule(
        id="V050a",
        fields=("ddp.param_name_patterns_for_fp32_local_accumulation", "ddp.grad_reduce_in_fp32"),
        test=_patterns,
        why="all gradients are in float32 then anyway",
        fix="Set ddp.grad_reduce_in_fp32=false, or no patterns.",
        fails={
            "ddp.param_name_patterns_for_fp32_local_accumulation": ("all",),
            "ddp.grad_reduce_in_fp32": True,
        },
        passes={"ddp.param_name_patterns_for_fp32_local_accumulation": ("all",)},
    ),
    Rule(
        id="V050b",
        fields=("ddp.num_buckets", "ddp.bucket_size"),
        test=_buckets,
        why="one follows from the other",
        fix="Set one of them, and the other to null.",
        fails={"ddp.num_buckets": 4, "ddp.bucket_size": 1000},
        passes={"ddp.num_buckets": 4},
    ),
    Rule(
        id="D03",
        fields=(
            "ddp.megatron_fsdp_main_params_dtype",
            "ddp.megatron_fsdp_main_grads_dtype",
            "ddp.megatron_fsdp_grad_comm_dtype",
        ),
        test=_dtypes,
        why="torch knows no other dtype for it",
        fix="Use a name from the list.",
        fails={"ddp.megatron_fsdp_main_params_dtype": "fp32"},
        passes={"ddp.megatron_fsdp_main_params_dtype": "float32"},
    ),
)

RULES: tuple[Rule, ...] = (
    *RECIPE_RULES,
    *OPTIMIZER_RULES,
    *DDP_RULES,
    Rule(
        id="V145",
        fields=("model.fp16", "model.bf16"),
        test=_both,
        why="a model computes in one of the two",
        fix="Switch one of them off.",
        fails={"model.fp16": True, "model.bf16": True},
        passes={"model.bf16": True},
    ),
    Rule(
        id="V147",
        fields=(
            "optimizer.use_precision_aware_optimizer",
            "model.bf16",
            "model.fp16",
            "optimizer.bf16",
            "optimizer.fp16",
        ),
        test=_v147,
        why="it keeps its state beside the model's own parameters",
        fix="Give model and optimizer the same precision, or switch it off.",
        fails={"optimizer.use_precision_aware_optimizer": True, "model.bf16": True},
        passes={
            "optimizer.use_precision_aware_optimizer": True,
            "model.bf16": True,
            "optimizer.bf16": True,
        },
    ),
    Rule(
        id="V148",
        fields=("model.fine_grained_activation_offloading", "model.transformer_impl"),
        test=_v148,
        why="only Transformer Engine's layers offload activations one by one",
        fix="Set model.transformer_impl=transformer_engine or switch the offloading off.",
        fails={"model.fine_grained_activation_offloading": True, "model.transformer_impl": "local"},
        passes={
            "model.fine_grained_activation_offloading": True,
            "model.transformer_impl": "transformer_engine",
        },
    ),
)
