"""User buffers in the form that Transformer Engine's `initialize_ub` takes; Transformer Engine is not imported."""

from collections.abc import Mapping, Sequence
from dataclasses import Field, asdict
from typing import Any, ClassVar, Literal, Protocol

from mb_overlap.buffer_settings import reduce_scatter_dgrads, setting_problems
from mb_overlap.te_versions import NEWEST_VERSION, QUANTIZATION_MODES, parse_version


class BufferSettingsError(ValueError):
    """Settings, or a shape, that Transformer Engine's user buffers cannot have."""


class Dataclass(Protocol):
    """Any dataclass instance."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


def to_transformer_engine(cfg: Dataclass | Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return plain nested dictionaries: name of the GEMM, then name of the setting, to its value.

    A GEMM whose entry is None is left out; Transformer Engine then takes its own settings for it. As JSON, and so
    as YAML, it is the file that Megatron-LM's `--tp-comm-overlap-cfg` names.

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
    """Return the keyword arguments of `initialize_ub` in a release of Transformer Engine.

    The modes stay names of members of its `UserBufferQuantizationMode`; `mb_overlap.te` replaces them. Add
    `bootstrap_backend` ("nccl", "gloo" or "mpi") where it is not to choose. Releases 2.8 to 2.20 stop with "x not in
    list" where an input gradient is not bulk and there are two modes, because they move it twice; the second mode's
    settings are therefore handed over without its method, which already stands.

    Args:
        seq_length: tokens in a sequence.
        micro_batch_size: sequences in a microbatch.
        hidden_size: width of the model.
        tp: ranks in the tensor-parallel group.
        cp: ranks in the context-parallel group.
        release: version of Transformer Engine.
        settings: a preset or your own; None leaves all of them to Transformer Engine.
        quantization_modes: types of the layers' GEMMs: "FP8", "NONE" (as the activations), or both where the outer
            layers of an FP8 model stay in bfloat16.

    Raises:
        BufferSettingsError: the shape cannot be split, or the settings are wrong for this release.
    """
    tokens = seq_length * micro_batch_size
    if tokens % (cp * tp):
        raise BufferSettingsError(
            f"shape: {tokens} tokens cannot be split (seq_length={seq_length}, micro_batch_size={micro_batch_size}, "
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
    later = {gemm: dict(entry) for gemm, entry in entries.items()}
    for gemm in moved:
        del later[gemm]["method"]
    return [entries, *([later] * (modes - 1))]
