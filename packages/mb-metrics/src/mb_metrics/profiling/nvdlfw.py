"""Adapter for NVIDIA DL Framework Inspect."""

from __future__ import annotations

from typing import TYPE_CHECKING

import nvdlfw_inspect.api  # type: ignore[import-untyped,import-not-found,unused-ignore]

if TYPE_CHECKING:
    from mb_metrics.profiling.tensor_inspect import InspectTool


def tool() -> InspectTool:
    """Return the tool, not initialized."""
    api: InspectTool = nvdlfw_inspect.api
    return api
