"""Faults of selective recomputation: modules whose output is discarded after the forward pass and computed again."""

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


def _discards_outputs(settings: Settings) -> bool:
    modules = {*(settings.recompute_modules or ())}
    return settings.recompute_granularity == "selective" and bool(
        modules & {"layernorm", "moe_act", "mla_up_proj"}
    )


def _patch(wrap: Any, target: str, source: str, **options: Any) -> Patch:
    return Patch(wrap=wrap, module=_RANDOM, target=target, sources=(source,), **options)


FAULTS = (
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
)
