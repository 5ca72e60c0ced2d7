"""The per-GEMM overlap settings in the form that Transformer Engine's `initialize_ub(ub_cfgs=...)` takes."""

from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def to_transformer_engine(cfg: "DataclassInstance") -> dict[str, dict[str, object]]:
    """Return plain nested dictionaries: name of the GEMM, then name of the setting, to its value.

    A GEMM whose entry is None does not overlap, and is left out.

    Args:
        cfg: a `TransformerLayerTPOverlapCfg`, or any dataclass whose fields are dataclasses or None.
    """
    return {gemm: settings for gemm, settings in asdict(cfg).items() if settings is not None}
