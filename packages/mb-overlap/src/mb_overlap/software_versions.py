"""Versions of the software that the overlap rules depend on: given by the caller, or detected on this machine."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from mb_schema.versions import installed_version


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftwareVersions:
    """Software installed on the machines that run the model."""

    transformer_engine: bool
    """Whether Transformer Engine is installed."""
    transformer_engine_version: str | None
    """Version of Transformer Engine; None if unknown."""
    torch_version: str | None
    """Version of torch; None if unknown."""


def detect_versions(transformer_engine: bool | None, facts: Mapping[str, Any]) -> SoftwareVersions:
    """Return the given facts, completed with the packages installed on this machine. Imports nothing."""
    known_facts = facts.get("transformer_engine") if transformer_engine is None else transformer_engine
    release = facts.get("transformer_engine_version")
    if known_facts is None:
        known_facts = release is not None or find_spec("transformer_engine") is not None
    return SoftwareVersions(
        transformer_engine=known_facts,
        transformer_engine_version=release or installed_version("transformer-engine")
        if known_facts
        else None,
        torch_version=facts.get("torch_version") or installed_version("torch"),
    )
