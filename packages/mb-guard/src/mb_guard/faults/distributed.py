"""Faults of data parallelism."""

import weakref
from typing import Any

from mb_guard.fault import Fault, Function, Patch, Settings, around


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


def _experts_without_copies_possible(settings: Settings) -> bool:
    return (
        bool(settings.use_megatron_fsdp)
        and (settings.expert_model_parallel_size or 1) > 1
        and settings.data_parallel_sharding_strategy in ("optim_grads", "optim_grads_params")
        and not settings.calculate_per_token_loss
    )


FAULTS = (
    Fault(
        id="fsdp-scales-experts-per-microbatch",
        effect="wrong number",
        summary="Megatron-FSDP with sharded gradients scales the sum of gradients of experts again in each microbatch, "
        "where expert parallelism takes all data-parallel ranks, so that experts have no copies.",
        shows="Silent. Two microbatches with gradients a and b on EP = DP = 2: a/4 + b/2 instead of (a + b)/2, 34 % "
        "off, and a gradient norm that is too small.",
        action="warn",
        test="packages/mb-guard/tests/test_distributed.py::test_fsdp_scales_a_sum_of_microbatches_again",
        met=_experts_without_copies_possible,
        advice="If expert_model_parallel_size is the data-parallel size: set calculate_per_token_loss=true, which "
        "scales once, or data_parallel_sharding_strategy=optim.",
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
