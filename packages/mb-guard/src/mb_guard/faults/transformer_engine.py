"""Names of Transformer Engine that Megatron Core no longer finds."""

from types import ModuleType
from typing import Any

from mb_guard.fault import TESTED_MEGATRON, Fault, Patch
from mb_guard.sources import defines


def split_along_dim(missing: Any) -> Any:
    """Return the split of Transformer Engine whose backward does not copy, under the name that it has now."""
    from transformer_engine.pytorch.utils import SplitAlongDim

    return SplitAlongDim.apply


def _is_lost(module: ModuleType) -> bool:
    return (
        module.__dict__["HAVE_TE"]
        and module.__dict__["SplitAlongDim"] is None
        and defines("transformer_engine.pytorch.utils", "SplitAlongDim")
    )


def _patch(module: str) -> Patch:
    return Patch(wrap=split_along_dim, module=module, target="SplitAlongDim", sources=(), needed=_is_lost)


FAULTS = (
    Fault(
        id="split-along-dim",
        effect="slow",
        summary="Megatron Core imports `_SplitAlongDim` from transformer_engine.pytorch.attention; Transformer Engine "
        "2.20 has it as transformer_engine.pytorch.utils.SplitAlongDim only, and attention falls back to torch.split.",
        shows="Silent. The backward pass of every attention layer copies the gradients of q, k and v: 6 % of a step "
        "of a GPT of 355 M parameters on an H200.",
        versions={**TESTED_MEGATRON, "transformer-engine": ">=2.20.0,<=2.20.2"},
        action="put right",
        test="packages/mb-guard/tests/test_transformer_engine.py::test_the_split_is_found_under_its_new_name",
        patches=(
            _patch("megatron.core.extensions.transformer_engine"),
            _patch("megatron.core.transformer.attention"),
        ),
    ),
)
