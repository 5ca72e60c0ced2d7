"""Faults of recomputation: modules whose output is discarded, and random states that are not restored."""

import functools
import logging
from types import ModuleType
from typing import Any

from mb_guard.fault import Fault, Function, Patch, Settings, around

_logger = logging.getLogger(__name__)
_RANDOM = "megatron.core.tensor_parallel.random"
_TESTS = "packages/mb-guard/tests/test_recomputation.py"


@around
def without_eight_bits(init: Function, self: Any, *args: Any, **kwargs: Any) -> None:
    """Recompute without the FP8 contexts of Transformer Engine, which is not installed."""
    init(self, *args, **kwargs)
    self.fp8 = False


def _lacks_transformer_engine(module: ModuleType) -> bool:
    return not hasattr(module, "FP8GlobalStateManager")


def copying_where_not_compiled(get_share_storage: Function) -> Function:
    """Return the function that restores discarded outputs: the compiled one, or one that copies where it cannot be.

    Without a GPU nothing is compiled.
    """

    @functools.cache
    @functools.wraps(get_share_storage)
    def patched() -> Function:
        import torch

        if not torch.cuda.is_available():
            return copy_storage
        try:
            compiled: Function = get_share_storage()
        except (OSError, RuntimeError, ImportError) as error:
            reason = str(error).strip().partition("\n")[0]
            _logger.warning(
                "recompute_modules: discarded outputs are restored by a copy, because Megatron Core's extension "
                "cannot be compiled (%s). Install a C++ compiler and ninja to save the copy",
                reason,
            )
            return copy_storage
        return compiled

    return patched


def copy_storage(output: Any, recomputed: Any) -> None:
    """Fill the emptied storage of a tensor; its views have the data, and its version does not change."""
    storage, source = output.untyped_storage(), recomputed.untyped_storage()
    storage.resize_(source.size())
    storage.copy_(source)


@around
def with_values(get_states: Function) -> tuple[Any, Any, Any]:
    """Return the random states with the values of generators, and with the name of the state that is in use."""
    import torch

    host, device, states = get_states()
    generators = [] if torch.cuda.is_current_stream_capturing() else [device, *states.values()]
    values = [(each, each.get_state()) for each in generators if not isinstance(each, torch.Tensor)]
    used = getattr(get_states.__globals__["get_cuda_rng_tracker"](), "_current_state_name", None)
    return host, device, (states, values, used)


@around
def restore_values(set_states: Function, host: Any, device: Any, saved: Any) -> None:
    """Set the random states of `with_values`. The values of generators are left alone while a graph is captured."""
    import torch

    states, values, used = saved
    if not torch.cuda.is_current_stream_capturing():
        for generator, value in values:
            generator.set_state(value)
    set_states(host, device, states)
    if used is not None:
        set_states.__globals__["get_cuda_rng_tracker"]()._current_state_name = used


def _discards_outputs(settings: Settings) -> bool:
    modules = {*(settings.recompute_modules or ())}
    return settings.recompute_granularity == "selective" and bool(
        modules & {"layernorm", "moe_act", "mla_up_proj"}
    )


def _frees_residual(settings: Settings) -> bool:
    return (
        bool(settings.fused_residual_rmsnorm)
        and settings.recompute_granularity == "selective"
        and "layernorm" in (settings.recompute_modules or ())
    )


def _patch(wrap: Any, target: str, source: str, **options: Any) -> Patch:
    return Patch(wrap=wrap, module=_RANDOM, target=target, sources=(source,), **options)


FAULTS = (
    Fault(
        id="recomputed-random-states",
        effect="wrong number",
        summary="Recomputation does not restore the random states of the forward pass: of a tracker for CUDA graphs "
        "(te_rng_tracker) it keeps generators that advance, and it forgets which state of the tracker is in use, "
        "so that a fork within that of a sequence-parallel block draws other numbers.",
        shows="Silent: gradients belong to other dropout masks than the loss. Those of LoRA with dropout are 3.3 times "
        "their own length off under sequence parallelism and full recomputation.",
        action="put right",
        report="https://github.com/NVIDIA/Megatron-LM/pull/5841",
        test=f"{_TESTS}::test_recomputation_draws_the_same_numbers",
        met=lambda settings: settings.recompute_granularity is not None,
        patches=(
            _patch(with_values, "_get_all_rng_states", "02cda31afa57874e"),
            _patch(restore_values, "_set_all_rng_states", "6c5b15df7ce9ee24"),
        ),
    ),
    Fault(
        id="recomputed-norms-need-transformer-engine",
        effect="crash",
        summary="recompute_modules with layernorm or moe_act call Transformer Engine's FP8 state where it is missing.",
        shows="NameError: name 'FP8GlobalStateManager' is not defined, in the first step without Transformer Engine.",
        action="put right",
        test=f"{_TESTS}::test_discarded_outputs_are_recomputed_without_transformer_engine",
        met=lambda settings: _discards_outputs(settings) and settings.transformer_impl == "local",
        patches=(
            _patch(
                without_eight_bits,
                "CheckpointWithoutOutput.__init__",
                "0a6bc99b1f6425d7",
                needed=_lacks_transformer_engine,
            ),
        ),
    ),
    Fault(
        id="recomputation-needs-a-compiler",
        effect="crash",
        summary="recompute_modules with layernorm, moe_act, mla_up_proj compile a C++ extension in the first backward "
        "pass.",
        shows="RuntimeError: Ninja is required to load C++ extensions, or an error of the compiler, in the first "
        "backward pass.",
        action="put right",
        test=f"{_TESTS}::test_discarded_outputs_are_restored_without_a_compiler",
        met=_discards_outputs,
        patches=(_patch(copying_where_not_compiled, "_get_share_storage", "14fe8bafdf5a247a"),),
    ),
    Fault(
        id="fused-residual-freed",
        effect="crash",
        summary="recompute_modules with layernorm free the memory of all that a norm returns: with "
        "fused_residual_rmsnorm also that of the residual, which is the input of the norm.",
        shows="Memory that is read after it is freed, in the first step of a model with experts or latent attention.",
        action="refuse",
        report="https://github.com/NVIDIA/Megatron-LM/pull/4497",
        test=f"{_TESTS}::test_a_returned_input_is_freed",
        met=_frees_residual,
        advice="Set fused_residual_rmsnorm=False, or remove layernorm from recompute_modules.",
    ),
)
