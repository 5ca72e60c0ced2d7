"""Pairs of versions that are known not to work together."""

from collections.abc import Mapping
from dataclasses import dataclass

from mb_guard.versions import within


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
