"""Arguments for Transformer Engine's `initialize_ub`. Does not import Transformer Engine."""

from collections.abc import Mapping, Sequence
from dataclasses import Field, asdict
from typing import Any, ClassVar, Literal, Protocol

from mb_overlap.errors import OverlapError
from mb_overlap.transformer_engine.buffer_settings import reduce_scatter_dgrads, setting_problems
from mb_overlap.transformer_engine.te_versions import NEWEST_VERSION, QUANTIZATION_MODES, parse_version


class BufferSettingsError(OverlapError, ValueError):
    """Settings or a shape that Transformer Engine's user buffers do not support."""


class Dataclass(Protocol):
    """Any dataclass instance."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


def to_transformer_engine(cfg: Dataclass | Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the settings as nested dictionaries: name of the GEMM to name of the setting to value.

    A GEMM whose entry is None is omitted, and Transformer Engine uses its defaults for it. Written as JSON, which is
    valid YAML, the result is a file for Megatron-LM's `--tp-comm-overlap-cfg`.

    Args:
        cfg: a `TransformerLayerTPOverlapCfg`, any dataclass whose fields are dataclasses or None, or such a dictionary.
    """
    settings = dict(cfg) if isinstance(cfg, Mapping) else asdict(cfg)
    return {gemm: entry for gemm, entry in settings.items() if entry is not None}


def initialize_ub_arguments(
    *,
    seq_length: int,
    micro_batch_size: int,
    hidden_size: int,
    tp: int,
    cp: int = 1,
    release: str = NEWEST_VERSION,
    settings: Dataclass | Mapping[str, Any] | None = None,
    quantization_modes: Sequence[Literal["FP8", "NONE"]] = ("NONE",),
) -> dict[str, Any]:
    """Return the keyword arguments of `initialize_ub` for a release of Transformer Engine.

    Quantization modes are returned as member names of `UserBufferQuantizationMode`; the module `te` replaces them with
    the members. Add `bootstrap_backend` ("nccl", "gloo" or "mpi") to override Transformer Engine's choice.

    Args:
        seq_length: number of tokens in a sequence.
        micro_batch_size: number of sequences in a microbatch.
        hidden_size: hidden size of the model.
        tp: number of ranks in the tensor-parallel group.
        cp: number of ranks in the context-parallel group.
        release: version of Transformer Engine.
        settings: a preset or custom settings; None selects Transformer Engine's defaults.
        quantization_modes: data types of the GEMMs: "FP8", "NONE" (as the activations), or both if the outer layers of
            an FP8 model remain in bfloat16.

    Raises:
        BufferSettingsError: the shape is not divisible, or the settings are invalid for this release.
    """
    tokens = seq_length * micro_batch_size
    if tokens % (cp * tp):
        raise BufferSettingsError(
            f"shape: {tokens} tokens are not divisible (seq_length={seq_length}, micro_batch_size={micro_batch_size}, "
            f"cp={cp}, tp={tp}), because each rank holds an equal part. Choose a multiple of {cp * tp}."
        )
    entries = to_transformer_engine(settings or {})
    if problems := setting_problems(entries, release=parse_version(release)):
        raise BufferSettingsError("tp_comm_overlap_cfg: " + "; ".join(problems) + ". Correct the settings.")
    arguments: dict[str, Any] = {"shape": [tokens // cp, hidden_size], "tp_size": tp}
    if parse_version(release) < QUANTIZATION_MODES:
        return {**arguments, "use_fp8": "FP8" in quantization_modes, "ub_cfgs": entries}
    modes = list(quantization_modes)
    return {**arguments, "quantization_modes": modes, "ub_cfgs": _for_each_mode(entries, len(modes))}


def _for_each_mode(entries: dict[str, dict[str, Any]], modes: int) -> object:
    moved = reduce_scatter_dgrads(entries)
    if modes == 1 or not moved:
        return entries
    # Workaround for Transformer Engine 2.8 to 2.20: `initialize_ub` moves an input gradient that is not bulk to the
    # list of reduce-scatters once per mode, and the second removal raises "x not in list". The entries of the further
    # modes therefore omit the method, which the first mode has already set.
    later = {gemm: dict(entry) for gemm, entry in entries.items()}
    for gemm in moved:
        del later[gemm]["method"]
    return [entries, *([later] * (modes - 1))]
