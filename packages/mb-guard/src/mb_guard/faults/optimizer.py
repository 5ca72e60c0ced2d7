"""Faults of `DistributedOptimizer` when it saves or loads a checkpoint.

Its loader is written for the FusedAdam of Transformer Engine and Apex, which keeps one step per parameter group and
whose state the loader allocates. torch's AdamW, which Megatron Core uses without them, keeps one step tensor per
parameter and creates its state in the first step.
"""

import functools
from types import ModuleType
from typing import Any

from mb_guard.fault import Fault, Function, Patch, Settings, around
from mb_guard.faults.rewriting import rewritten

_TEST = "packages/mb-guard/tests/test_optimizer.py"
_SILENT_DIVERGENCE = (
    "Silent: the losses of a resumed run differ from those of the uninterrupted run from the second step on."
)


def allocate_optimizer_state(state_dict: Function) -> Function:
    """Allocate the state of AdamW before it is read; otherwise an assertion on the number of steps fails.

    It fails, too, on a rank without parameters of this optimizer, such as one whose pipeline stage has no experts.
    """
    import torch

    @functools.wraps(state_dict)
    def patched(self: Any, *args: Any, **kwargs: Any) -> Any:
        # HybridDeviceOptimizer, which offloads to the host, keeps the state in the optimizers that it consists of
        parts = getattr(self.optimizer, "sub_optimizers", None)
        for optimizer in [self.optimizer] if parts is None else parts:
            for parameter in (each for group in optimizer.param_groups for each in group["params"]):
                if not (state := optimizer.state[parameter]):
                    state["step"] = torch.tensor(0.0)
                    state["exp_avg"] = torch.zeros_like(parameter.data)
                    state["exp_avg_sq"] = torch.zeros_like(parameter.data)
        if parts is not None:
            self.optimizer._sync_sub_optimizers_state_to_hdo()
        if self.optimizer.state:
            return state_dict(self, *args, **kwargs)
        self.optimizer.state["no parameters"] = {"step": torch.tensor(0.0)}
        try:
            return state_dict(self, *args, **kwargs)
        finally:
            self.optimizer.state.clear()

    return patched


@around
def separate_step_tensors(load_state_dict: Function, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Give each parameter a separate step tensor after loading."""
    loaded = load_state_dict(self, *args, **kwargs)
    for state in self.optimizer.state.values():
        if "step" in state:
            state["step"] = state["step"].clone()
    return loaded


@around
def exclude_step_tensor(set_states: Function, self: Any, model_param: Any, *args: Any, **kwargs: Any) -> Any:
    """Exclude the step from the tensors that are loaded per parameter."""
    group, order = self.model_param_group_index_map[model_param]
    state = self.optimizer.state[self.optimizer.param_groups[group]["params"][order]]
    step = state.pop("step", None)
    try:
        return set_states(self, model_param, *args, **kwargs)
    finally:
        if step is not None:
            state["step"] = step


def load_without_grad(set_states: Function) -> Function:
    """Load without autograd: main parameters of float32 weights are views of leaves, which are written in place."""
    import torch

    return torch.no_grad()(set_states)


def save_zeros(sharded_state: Function) -> Function:
    """Save zeros in the gaps between parameters."""
    return rewritten(sharded_state, ("k: torch.empty(", "k: torch.zeros("))


def _range_without_padding(buffer: Any, parameter: Any, bucket: int) -> tuple[int, int]:
    """Return the range of a parameter in the buckets of a buffer, concatenated without the padding at their ends."""
    before = sum(each.numel_unpadded for each in buffer.buckets[:bucket])
    start, end = buffer.buckets[bucket].param_to_index[parameter]
    return before + start, before + end


def slice_without_padding(sharded_state: Function) -> Function:
    """Slice the state of a buffer, which lacks the padding at the ends of buckets, where a parameter is without it."""
    loop = "                {},\n            ) in buffer.param_index_map.items():\n"
    return rewritten(
        sharded_state,
        (
            loop.format("_"),
            loop.format("bucket_id")
            + "                param_world_start, param_world_end = range_without_padding(\n"
            "                    buffer, model_param, bucket_id)\n",
        ),
        range_without_padding=_range_without_padding,
    )


def _state_of_any_parameter(optimizer: Any) -> dict[str, Any]:
    """Return the tensors that the optimizer keeps for a parameter, of which a gap has the types."""
    import torch

    for parameter in optimizer.model_param_gbuf_map:
        if parameter in optimizer.model_param_group_index_map:
            tensors: dict[str, Any] = optimizer._get_main_param_and_optimizer_states(parameter)
            return tensors
    device = torch.cuda.current_device()
    return {
        key: torch.empty(0, dtype=optimizer._get_state_key_dtype(key), device=device)
        for key in ("param", *optimizer.optimizer_state_keys)
    }


def save_no_padding_of_bucket_ends(sharded_state: Function) -> Function:
    """End the shard of a rank where its bucket ends without padding, also if no parameter is in it."""
    gap = "                    # Insert padding if there is a gap between next param,\n"
    pieces = "                # Each tensor is mapped to a slice\n"
    return rewritten(
        sharded_state,
        ("                assert bucket_state, 'empty bucket encountered'\n", ""),
        (
            gap,
            "                    next_param_start = min(next_param_start, max(cur_param_end,\n"
            "                        gbuf_world_numel_unpadded - data_parallel_rank * gbuf_local_numel))\n"
            + gap,
        ),
        (
            "for k, v in bucket_state[i].items()",
            "for k, v in (bucket_state[i] if bucket_state else state_of_any_parameter(self)).items()",
        ),
        (
            pieces,
            "                if not bucket_state:\n"
            "                    bucket_state.append(\n"
            "                        {'gbuf_local_start': 0, 'gbuf_local_end': 0, 'padding': True})\n"
            + pieces,
        ),
        state_of_any_parameter=_state_of_any_parameter,
    )


@around
def reload_offloaded(copy: Function, self: Any, state_dict: Any = None) -> None:
    """Copy weights also to main parameters that an optimizer on the host has, and to its copies of them."""
    copy(self, state_dict)
    hybrid = self.optimizer
    if not hasattr(hybrid, "sub_optimizers"):
        return
    self.optimizer = None  # with HybridDeviceOptimizer, Megatron copies nothing else
    try:
        copy(self, state_dict)
    finally:
        self.optimizer = hybrid
    for parameter, updated in hybrid.param_to_inner_param.items():
        updated.data.copy_(parameter)


def _torch_optimizer(module: ModuleType) -> bool:
    """Return whether Megatron fell back to torch's optimizers."""
    return not module.__dict__["HAVE_APEX_OR_TE"]


def _distributed_optimizer(settings: Settings) -> bool:
    return bool(settings.use_distributed_optimizer)


def _patch(wrap: Any, target: str, source: str, needed: Any = _torch_optimizer) -> tuple[Patch, ...]:
    return (
        Patch(
            wrap=wrap,
            module="megatron.core.optimizer.distrib_optimizer",
            target=f"DistributedOptimizer.{target}",
            sources=(source,),
            needed=needed,
        ),
    )


FAULTS = (
    Fault(
        id="distributed-optimizer-state",
        effect="crash",
        summary="DistributedOptimizer with torch's AdamW cannot load a checkpoint before its first step, nor save one "
        "on a rank without parameters of it.",
        shows="AssertionError in DistributedOptimizer.state_dict on resume, or in a save of experts on only some "
        "pipeline stages, without Transformer Engine and Apex.",
        action="put right",
        met=_distributed_optimizer,
        test=f"{_TEST}::test_the_other_faults_raise_while_loading",
        patches=_patch(allocate_optimizer_state, "state_dict", "70d0cda53831dbdd"),
    ),
    Fault(
        id="shared-step-tensor",
        effect="wrong number",
        summary="After DistributedOptimizer has loaded a checkpoint, all parameters of torch's AdamW share one step "
        "tensor, which counts every update once per parameter.",
        shows=_SILENT_DIVERGENCE,
        action="put right",
        met=_distributed_optimizer,
        test=f"{_TEST}::test_a_shared_step_tensor_diverges",
        patches=_patch(separate_step_tensors, "load_state_dict", "70749050242457b0"),
    ),
    Fault(
        id="step-tensor-not-saved",
        effect="crash",
        summary="DistributedOptimizer looks for a step per parameter of torch's AdamW, which its checkpoints lack.",
        shows="KeyError: 'step' while a run resumes without Transformer Engine and Apex.",
        action="put right",
        met=_distributed_optimizer,
        test=f"{_TEST}::test_the_other_faults_raise_while_loading",
        patches=_patch(exclude_step_tensor, "_set_main_param_and_optimizer_states", "20b6b8ac2fd8c3a6"),
    ),
    Fault(
        id="load-into-leaf-views",
        effect="crash",
        summary="DistributedOptimizer with float32 weights loads in place into views of leaves that require gradients.",
        shows="RuntimeError: a view of a leaf Variable that requires grad is being used in an in-place operation, "
        "while a run resumes, with and without Transformer Engine.",
        action="put right",
        met=_distributed_optimizer,
        test=f"{_TEST}::test_the_other_faults_raise_while_loading",
        patches=_patch(
            load_without_grad, "_set_main_param_and_optimizer_states", "20b6b8ac2fd8c3a6", needed=None
        ),
    ),
    Fault(
        id="uninitialized-padding-saved",
        effect="wrong number",
        summary="DistributedOptimizer saves what memory holds in the gaps between parameters (dp_reshardable).",
        shows="Checkpoints of equal runs differ, by NaN where the memory held it.",
        action="put right",
        met=_distributed_optimizer,
        test=f"{_TEST}::test_gaps_between_parameters_are_saved_as_zeros",
        patches=_patch(save_zeros, "sharded_param_state_dp_reshardable", "9e1d6f215185180b", needed=None),
    ),
    Fault(
        id="fully-reshardable-state-is-shifted",
        effect="wrong number",
        summary="With dist_ckpt_optim_fully_reshardable, DistributedOptimizer gathers its state without the padding "
        "at the ends of buckets, and slices it as if it had the padding.",
        shows="With overlap_grad_reduce or shared embeddings, all parameters after the first padded bucket are saved "
        "shifted, the last with zeros and a warning: a resumed run has wrong weights after its first update.",
        action="put right",
        met=lambda settings: (
            _distributed_optimizer(settings) and bool(settings.dist_ckpt_optim_fully_reshardable)
        ),
        test=f"{_TEST}::test_parameters_are_saved_as_they_are_in_padded_buckets",
        report="https://github.com/NVIDIA/Megatron-LM/pull/5077",
        patches=_patch(
            slice_without_padding, "sharded_param_state_fully_reshardable", "66e32dbb46a204db", needed=None
        ),
    ),
    Fault(
        id="padding-of-bucket-ends-saved",
        effect="crash",
        summary="DistributedOptimizer cannot save (dp_reshardable) where a rank's part of a bucket has no parameter, "
        "as with pad_buckets_for_high_nccl_busbw or a small bucket, nor where it ends in padding of a parameter and of "
        "the bucket, as before shared embeddings of a hybrid.",
        shows="AssertionError: empty bucket encountered, or a shard out of bounds, at the first save.",
        action="put right",
        met=_distributed_optimizer,
        test=f"{_TEST}::test_padding_of_bucket_ends_is_not_saved",
        report="https://github.com/NVIDIA/Megatron-LM/pull/6191",
        patches=_patch(
            save_no_padding_of_bucket_ends,
            "sharded_param_state_dp_reshardable",
            "9e1d6f215185180b",
            needed=None,
        ),
    ),
    Fault(
        id="offloaded-optimizer-keeps-old-weights",
        effect="wrong number",
        summary="With optimizer_cpu_offload and without use_precision_aware_optimizer, weights that are loaded without "
        "the state of the optimizer do not reach its main parameters.",
        shows="Silent: the first loss is that of the loaded weights; the first update puts the initial weights back.",
        action="put right",
        met=lambda settings: (
            bool(settings.optimizer_cpu_offload) and not settings.use_precision_aware_optimizer
        ),
        test=f"{_TEST}::test_loaded_weights_reach_adam_on_the_host",
        report="https://github.com/NVIDIA/Megatron-LM/pull/5071",
        patches=_patch(
            reload_offloaded, "_copy_model_params_to_main_params", "135a0534db655b84", needed=None
        ),
    ),
)
