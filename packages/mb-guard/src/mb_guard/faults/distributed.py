"""Faults of data parallelism."""

import weakref
from typing import Any

from mb_guard.fault import Fault, Function, Patch, Settings, around
from mb_guard.faults.rewriting import rewritten


@around
def weak_backward_hooks(make_hook: Function, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Let backward hooks of data parallelism reference their wrapper weakly, so that unused models are freed.

    An autograd graph keeps these hooks alive, invisibly to Python's garbage collector: the distributed optimizer's main
    parameters are views with a graph, and the dispatcher of a mixture of experts stores the probabilities of the last
    step.
    """
    wrapper = weakref.ref(self)

    def hook(*gradients: Any) -> None:
        if (owner := wrapper()) is not None:
            make_hook(owner, *args, **kwargs)(*gradients)

    return hook


@around
def reduce_as_configured(start: Function, self: Any, *args: Any, **kwargs: Any) -> None:
    """Reduce gradients with the function of this model's configuration, not of any model of the process."""
    import torch
    from megatron.core.distributed import param_and_grad_buffer as module

    module.dist_reduce_scatter_func = (
        module.reduce_scatter_with_fp32_accumulation
        if self.ddp_config.reduce_scatter_with_fp32_accumulation
        else torch.distributed.reduce_scatter_tensor
    )
    start(self, *args, **kwargs)


def add_up_reduced_gradients(init_buffers: Function) -> Function:
    """Add the reduced gradient of each microbatch to the sum also where a data-parallel group has one rank.

    Megatron-FSDP reduces the sum itself there, again with each microbatch.
    """
    return rewritten(
        init_buffers,
        (
            "is_data_distributed=is_grad_buffer_distributed and main_buf_dp_group.size() > 1,",
            "is_data_distributed=is_grad_buffer_distributed,",
        ),
    )


def _shards_gradients(settings: Settings) -> bool:
    return bool(settings.use_megatron_fsdp) and settings.data_parallel_sharding_strategy in (
        "optim_grads",
        "optim_grads_params",
    )


def _overwrites_sums(settings: Settings) -> bool:
    return (
        bool(settings.use_megatron_fsdp and settings.gradient_accumulation_fusion)
        and settings.data_parallel_sharding_strategy == "optim"
    )


FAULTS = (
    Fault(
        id="fsdp-overwrites-sums-of-gradients",
        effect="wrong number",
        summary="Megatron-FSDP with data_parallel_sharding_strategy=optim and gradient_accumulation_fusion lets "
        "Transformer Engine overwrite the sum of the gradients of microbatches.",
        shows="Silent: a step has the gradients of its last microbatch only.",
        action="refuse",
        report="https://github.com/NVIDIA/Megatron-LM/pull/6357",
        test="packages/mb-guard/tests/test_distributed.py::test_fsdp_marks_sums_to_be_overwritten",
        met=_overwrites_sums,
        advice="Set gradient_accumulation_fusion=False, or another data_parallel_sharding_strategy.",
    ),
    Fault(
        id="fsdp-accumulates-wrongly-on-one-rank",
        effect="wrong number",
        summary="Megatron-FSDP with sharded gradients reduces the sum of gradients again in each microbatch where a "
        "data-parallel group has one rank, as for experts where expert parallelism takes all data-parallel ranks: it "
        "scales the sum again, and doubles it with megatron_fsdp_grad_comm_dtype.",
        shows="Silent. Two microbatches with gradients a and b: experts on EP = DP = 2 have a/4 + b/2 instead of "
        "(a + b)/2, 34 % off; with gradients sent in bfloat16, 4a + 2b instead of a + b.",
        action="put right",
        report="https://github.com/NVIDIA/Megatron-LM/issues/6660",
        test="packages/mb-guard/tests/test_distributed.py::test_fsdp_adds_up_the_gradients_of_a_group_of_one_rank",
        met=_shards_gradients,
        patches=(
            Patch(
                wrap=add_up_reduced_gradients,
                module="megatron.core.distributed.fsdp.src.megatron_fsdp.param_and_grad_buffer",
                target="ParamAndGradBuffer._init_each_parameter_group_buffers",
                sources=("948b28776f579c8f",),
            ),
        ),
    ),
    Fault(
        id="weak-backward-hooks",
        effect="lost run",
        summary="A model under DistributedDataParallel is never freed: its backward hooks reference it from C++.",
        shows="Silent. Each model that a process builds (in-process restart, sweeps, tests) keeps its memory and the "
        "threads of its process groups, until memory ends.",
        action="put right",
        test="packages/mb-guard/tests/test_distributed.py::test_a_model_is_freed",
        patches=(
            Patch(
                wrap=weak_backward_hooks,
                module="megatron.core.distributed.distributed_data_parallel",
                target="DistributedDataParallel._make_backward_post_hook",
                sources=("01aa652d523bc8d7",),
            ),
        ),
    ),
    Fault(
        id="fp32-reduction-of-another-model",
        effect="wrong number",
        summary="A model with reduce_scatter_with_fp32_accumulation changes how all later ones of its process reduce "
        "gradients, and with overlap_grad_reduce those do not wait for it.",
        shows="Silent. In the second of two runs of a process the gradient norm is 0.63 instead of 0.89.",
        action="put right",
        test="packages/mb-guard/tests/test_distributed.py::test_each_model_reduces_as_configured",
        patches=(
            Patch(
                wrap=reduce_as_configured,
                module="megatron.core.distributed.param_and_grad_buffer",
                target="_ParamAndGradBucketGroup.start_grad_sync",
                sources=("d7f477a2824d8921",),
            ),
        ),
    ),
)
