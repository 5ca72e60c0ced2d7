"""The per-GEMM overlap settings in the form that Transformer Engine's `initialize_ub(ub_cfgs=...)` takes."""

from dataclasses import Field, asdict
from typing import Any, ClassVar, Protocol


class Dataclass(Protocol):
    """Any dataclass instance."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


def to_transformer_engine(cfg: Dataclass) -> dict[str, dict[str, object]]:
    """Return plain nested dictionaries: name of the GEMM, then name of the setting, to its value.

    A GEMM whose entry is None does not overlap, and is left out.

    Args:
        cfg: a `TransformerLayerTPOverlapCfg`, or any dataclass whose fields are dataclasses or None.
    """
    return {gemm: settings for gemm, settings in asdict(cfg).items() if settings is not None}
