"""Rules on the settings of Megatron Core's data-parallel wrapper."""

from __future__ import annotations

from mb_config.rules.environment import expandable_segments
from mb_config.rules.precision import unknown_dtypes
from mb_schema.cuda_graphs import captures_full_iteration
from mb_schema.rule_kinds import SET, ddp_rule, excludes, in_range, requires
from mb_schema.rules import Rule
from mb_schema.versions import at_least


@ddp_rule(
    "V050b",
    why="each determines the other",
    fix="Set one of them, and the other to null.",
    fails={"num_buckets": 4, "bucket_size": 1000},
    passes={"bucket_size": None},
)
def _two_numbers_of_buckets(num_buckets, bucket_size):
    if num_buckets is None:
        return None
    if num_buckets < 1:
        return f"must be at least 1, not {num_buckets}"
    return (
        f"{num_buckets} is set together with bucket_size={bucket_size}" if bucket_size is not None else None
    )


@ddp_rule(
    "V050c",
    why="torch below 2.11 cannot register memory of expandable segments",
    fix="Remove expandable_segments from that variable, or set ddp.nccl_ub=false.",
    fails={
        "nccl_ub": True,
        "env": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
        "torch_version": "2.10.0",
    },
    passes={"torch_version": "2.11.0a0+5228986c39"},
)
def _buffers_in_expandable_segments(nccl_ub, *, env, torch_version):
    variable = expandable_segments(env)
    if not nccl_ub or variable is None or at_least(torch_version, 2, 11):
        return None
    return f"cannot be combined with {variable}={env[variable]} on torch {torch_version}"


SECTION_RULES: tuple[Rule, ...] = (
    requires(
        "V050",
        {"ddp.reuse_grad_buf_for_mxfp8_param_ag": True},
        {"ddp.fp8_param_gather": True},
        why="the buffer is shared with the all-gather of FP8 parameters",
        fix="Set ddp.fp8_param_gather=true or ddp.reuse_grad_buf_for_mxfp8_param_ag=false.",
    ),
    excludes(
        "V050a",
        {"ddp.param_name_patterns_for_fp32_local_accumulation": True, "ddp.grad_reduce_in_fp32": True},
        why="all gradients are then in float32",
        fix="Set ddp.grad_reduce_in_fp32=false, or remove the patterns.",
        fails={"ddp.param_name_patterns_for_fp32_local_accumulation": ("all",)},
        passes={"ddp.param_name_patterns_for_fp32_local_accumulation": ()},
    ),
    _two_numbers_of_buckets,
    in_range(
        "V050d",
        "ddp.bucket_size",
        1,
        why="it is the number of parameters per bucket",
        fix="Set ddp.bucket_size to a number such as 40000000, or to null.",
    ),
    unknown_dtypes(
        "DT03",
        "ddp",
        (
            "megatron_fsdp_main_params_dtype",
            "megatron_fsdp_main_grads_dtype",
            "megatron_fsdp_grad_comm_dtype",
        ),
    ),
    _buffers_in_expandable_segments,
)


@ddp_rule(
    "V127a",
    why="the host cannot read a value while the step is captured",
    fix="Set ddp.check_for_nan_in_grad=false and ddp.check_for_large_grads=false.",
    fails={"check_for_nan_in_grad": True, "model__cuda_graph_impl": "full_iteration"},
    passes={"check_for_nan_in_grad": False},
)
def _gradients_read_in_graph(
    check_for_nan_in_grad,
    check_for_large_grads,
    model__cuda_graph_impl,
    model__cuda_graph_modules,
    model__cuda_graph_scope,
):
    captured = captures_full_iteration(
        model__cuda_graph_impl, model__cuda_graph_modules, model__cuda_graph_scope
    )
    if not captured or not (check_for_nan_in_grad or check_for_large_grads):
        return None
    return "gradients are read before they are reduced, within a CUDA graph of the full iteration"


@ddp_rule(
    "V127b",
    why="the scale is lowered after a step whose gradients overflow, and this check ends the run in that step",
    fix="Set ddp.check_for_nan_in_grad=false, as Megatron-LM does, or a constant optimizer.loss_scale.",
    fails={"check_for_nan_in_grad": True, "optimizer__fp16": True},
    passes={"optimizer__loss_scale": 1024.0},
    severity="warning",
)
def _overflow_ends_run(check_for_nan_in_grad, optimizer__fp16, optimizer__loss_scale):
    if not (check_for_nan_in_grad and optimizer__fp16) or optimizer__loss_scale:
        return None
    return "is true with float16 and a dynamic loss scale"


RULES: tuple[Rule, ...] = (
    *SECTION_RULES,
    excludes(
        "V248",
        {"ddp.overlap_grad_reduce": True, "model.no_sync_func": SET},
        why="the wrapper sets the function that delays the reduction until the last microbatch",
        fix="Leave model.no_sync_func unset or set ddp.overlap_grad_reduce=false.",
        fails={"model.no_sync_func": "my.no_sync"},
    ),
    _gradients_read_in_graph,
    _overflow_ends_run,
    excludes(
        "V137b",
        {"ddp.average_in_collective": True, "model.calculate_per_token_loss": True},
        why="gradients are divided by the tokens of a step, not by the number of ranks",
        fix="Set ddp.average_in_collective=false.",
    ),
)
