"""Faults of data parallelism."""

import functools
import weakref
from typing import Any

from mb_guard.fault import Fault, Function, Patch


def weak_backward_hooks(make_hook: Function) -> Function:
    """Let backward hooks of data parallelism reference their wrapper weakly, so that unused models are freed.

    An autograd graph keeps these hooks alive, invisibly to Python's garbage collector: the distributed optimizer's main
    parameters are views with a graph, and the dispatcher of a mixture of experts stores the probabilities of the last
    step.
    """

    @functools.wraps(make_hook)
    def patched(self: Any, *args: Any, **kwargs: Any) -> Any:
        wrapper = weakref.ref(self)

        def hook(*gradients: Any) -> None:
            if (owner := wrapper()) is not None:
                make_hook(owner, *args, **kwargs)(*gradients)

        return hook

    return patched


FAULTS = (
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
)
