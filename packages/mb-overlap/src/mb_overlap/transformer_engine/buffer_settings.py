"""Validation of user-buffer settings before Transformer Engine rejects or misinterprets them."""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from mb_overlap.transformer_engine.te_versions import (
    EXTERNAL,
    GEMMS,
    METHODS,
    NEWEST,
    OLDEST,
    REDUCE_SCATTERS,
    SETTINGS,
    Release,
    format_version,
)

_COLUMN_PARALLEL_DGRADS = ("qkv_dgrad", "fc1_dgrad")
"""Input gradients of the column-parallel layers. With the method bulk they overlap with the all-gather of the layer's
input; with another method they reduce-scatter their own output, which otherwise overlaps with the weight gradient."""
_RING_PAIRS = (("qkv_fprop", "proj_fprop"), ("fc1_fprop", "fc2_fprop"))
"""Forward GEMMs of which the first gathers the tokens that the second scatters."""
_MAX_NAME = 100
"""Characters of an unknown name that are compared with the known ones: the comparison takes quadratic time."""


def setting_problems(settings: Mapping[str, Any], *, release: Release = NEWEST) -> list[str]:
    """Return the problems of a dictionary for the argument `ub_cfgs` of `initialize_ub`; empty if it is valid.

    Each problem is a clause that begins with the name of a GEMM or of one of its settings. A method that is not set is
    the default of Transformer Engine: bulk for the gradients of qkv and fc1, pipeline for the forward GEMMs of proj and
    fc2, external for their weight gradients, and ring_exchange for the other four.

    Args:
        settings: name of a GEMM to its entry, a mapping.
        release: release of Transformer Engine.
    """
    if release < OLDEST:
        return [
            f"Transformer Engine {format_version(release)} is too old: {format_version(OLDEST)} is the first release "
            "that does not require MPI"
        ]
    return [
        *(problem for gemm, entry in settings.items() for problem in _entry_problems(gemm, entry, release)),
        *_cross_entry_problems(settings),
    ]


def _entry_problems(gemm: str, entry: object, release: Release) -> Iterator[str]:
    """Yield the problems of the entry of one GEMM by itself."""
    if gemm not in GEMMS:
        near = get_close_matches(str(gemm)[:_MAX_NAME], GEMMS, n=1)
        yield f"{gemm} is not a GEMM of a layer" + (f" (did you mean {near[0]}?)" if near else "")
    elif GEMMS[gemm] > release:
        yield f"{gemm} needs Transformer Engine {format_version(GEMMS[gemm])}, not {format_version(release)}"
    if not isinstance(entry, Mapping):
        yield f"{gemm} is {entry!r}, not a mapping"
        return
    for key, value in entry.items():
        yield from (f"{gemm}.{key} {problem}" for problem in _setting_problems(key, value, release))
    yield from _method_problems(gemm, entry, release)


def _setting_problems(key: str, value: object, release: Release) -> Iterator[str]:
    """Yield the problems of one key of an entry and of the type of its value, without the key."""
    if key not in SETTINGS:
        near = get_close_matches(str(key)[:_MAX_NAME], SETTINGS, n=1)
        yield "is not a setting" + (f" (did you mean {near[0]}?)" if near else "")
        return
    since, kind = SETTINGS[key]
    if since > release:
        yield f"needs Transformer Engine {format_version(since)}, not {format_version(release)}"
    if type(value) is not kind:
        yield f"is {value!r}, not of type {kind.__name__}"


def _method_problems(gemm: str, entry: Mapping[str, object], release: Release) -> Iterator[str]:
    """Yield the problem of a method that the release or the GEMM does not support."""
    method = entry.get("method")
    if not isinstance(method, str):
        return
    if method not in METHODS or METHODS[method] > release:
        methods = [name for name, since in METHODS.items() if since <= release]
        yield f"{gemm}.method {method!r} is not one of {', '.join(methods)}"
    elif (gemm in EXTERNAL) != (method == "external"):
        yield (
            f"{gemm}.method cannot be {method}: {' and '.join(EXTERNAL)} require the method external, and no other "
            "GEMM supports it"
        )
    elif method == "pipeline" and gemm not in (*REDUCE_SCATTERS, *_COLUMN_PARALLEL_DGRADS):
        yield f"{gemm}.method cannot be pipeline, because the GEMM gathers its input"


def _cross_entry_problems(settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield the problems of entries that exclude or require each other."""
    for dgrad in reduce_scatter_dgrads(settings):
        wgrad = dgrad.replace("dgrad", "wgrad")
        if wgrad in settings:
            yield f"{wgrad} cannot be set, because {dgrad} is {settings[dgrad]['method']} and replaces it"
    for gather, scatter in _RING_PAIRS:
        methods = {gather: "ring_exchange", scatter: "pipeline"}  # unless another one is set
        atomic = [name for name, method in methods.items() if _is_atomic_ring(settings.get(name), method)]
        if len(atomic) == 1:
            yield (
                f"{gather} and {scatter} must both be atomic rings or neither ({atomic[0]} is one), "
                "because the first permutes the chunks and the second restores their order"
            )


def reduce_scatter_dgrads(settings: Mapping[str, Any]) -> list[str]:
    """Return the input-gradient GEMMs that reduce-scatter their output, because their method is not bulk."""
    return [
        name
        for name in _COLUMN_PARALLEL_DGRADS
        if isinstance(settings.get(name), Mapping) and settings[name].get("method", "bulk") != "bulk"
    ]


def _is_atomic_ring(entry: object, default_method: str) -> bool:
    return (
        isinstance(entry, Mapping)
        and bool(entry.get("atomic_gemm"))
        and entry.get("method", default_method) == "ring_exchange"
    )
