"""Versions of the installed libraries, found without importing them, bounds on versions, and pairs that do not work."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import eq, ge, gt, le, lt, ne
from typing import Any

import mb_schema.versions
from mb_guard.sources import module_file

_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    ">=": ge,
    "<=": le,
    "==": eq,
    "!=": ne,
    ">": gt,
    "<": lt,
}


def installed_version(distribution: str) -> str | None:
    """Return the version of a library, without importing it; None if it is not installed.

    Megatron Core may be a source checkout on the path, which has no metadata and hides an installed distribution.
    """
    checked_out = _checked_out_megatron() if distribution == "megatron-core" else None
    return checked_out or mb_schema.versions.installed_version(distribution)


def _checked_out_megatron() -> str | None:
    """Return the version in `megatron/core/package_info.py`, the file that an import would find."""
    path = module_file("megatron.core.package_info")
    if path is None:
        return None
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return None
    parts = [re.search(rf"^{name} = (\d+)", text, re.MULTILINE) for name in ("MAJOR", "MINOR", "PATCH")]
    if not all(parts):
        return None
    release = ".".join(part[1] for part in parts if part is not None)
    pre_release = re.search(r"^PRE_RELEASE = ['\"]([^'\"]*)", text, re.MULTILINE)
    return release + (pre_release[1] if pre_release else "")


def within(version: str, bounds: str) -> bool:
    """Return whether a version is within bounds such as `>=0.19.0,<=0.19.2`.

    A pre-release comes before its release; a local part (`+cu130`) does not count.

    Raises:
        ValueError: a bound has no operator, or a version does not begin with a number.
    """
    return all(_satisfies(version, bound.strip()) for bound in bounds.split(","))


def _satisfies(version: str, bound: str) -> bool:
    operator = next((sign for sign in _OPERATORS if bound.startswith(sign)), None)
    if operator is None:
        raise ValueError(f"{bound}: a bound begins with one of {' '.join(_OPERATORS)}")
    return bool(_OPERATORS[operator](_key(version), _key(bound[len(operator) :])))


def _key(version: str) -> tuple[tuple[int, ...], bool, str]:
    """Return what orders versions: the numbers, padded; then whether it is a final release; then the suffix."""
    match = re.match(r"v?(\d+(?:\.\d+)*)[.-]?([a-z0-9.]*)", version.strip().partition("+")[0])
    if match is None:
        raise ValueError(f"{version}: not a version")
    numbers = tuple(int(part) for part in match[1].split("."))
    suffix = match[2]
    return numbers + (0,) * (4 - len(numbers)), not suffix or suffix.startswith("post"), suffix


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionPair:
    """Versions that do not work together, by distribution, and what happens."""

    bounds: Mapping[str, str]
    problem: str
    fix: str

    def matches(self, versions: Mapping[str, str | None]) -> bool:
        """Return whether the installed versions are such a pair; versions without a number match nothing."""
        return all(
            (version := versions.get(name)) is not None and within(version, bounds)
            for name, bounds in self.bounds.items()
        )


VERSION_PAIRS: tuple[VersionPair, ...] = (
    VersionPair(
        bounds={"megatron-core": ">=0.19", "nvidia-resiliency-ext": ">=0.4,<0.5"},
        problem="importing megatron.core.dist_checkpointing fails",
        fix="Install nvidia-resiliency-ext 0.3.0, or 0.5 and newer (glibc 2.39).",
    ),
    VersionPair(
        bounds={"megatron-core": ">=0.19", "torch": "<2.7"},
        problem="loading a checkpoint passes no_dist to torch.distributed.checkpoint.load, which this torch lacks",
        fix="Install torch 2.7 or newer.",
    ),
    VersionPair(
        bounds={"megatron-core": ">=0.19", "transformer-engine": ">=2.20,<=2.20.2"},
        problem="attention copies the gradients of q, k and v (split-along-dim)",
        fix="Call mb_guard.install().",
    ),
    VersionPair(
        bounds={"transformer-engine": ">=2.20"},
        problem="checkpoints with the pickled FP8 state of delayed scaling are refused at load",
        fix="Set NVTE_ALLOW_UNSAFE_PICKLE_EXTRA_STATE=1 for checkpoints that you trust.",
    ),
)


def known_pairs(versions: Mapping[str, str | None]) -> list[VersionPair]:
    """Return the pairs that the installed versions match."""
    return [pair for pair in VERSION_PAIRS if pair.matches(versions)]
