"""Adapter for NVIDIA DL Framework Inspect."""

import nvdlfw_inspect.api  # type: ignore[import-untyped,import-not-found,unused-ignore]

from mb_metrics.profiling.tensor_inspect import InspectTool


def tool() -> InspectTool:
    """Return the tool, not initialized."""
    api: InspectTool = nvdlfw_inspect.api
    return api
