"""Published runs of Megatron-Bridge, to which the prediction is fitted. Their source is in published.json."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from mb_plan.shape.model_shape import ModelShape, read_shape
from mb_plan.time.gpus import GPU_SPEEDS
from mb_plan.time.step import StepSettings

_UNPUBLISHED = {"add_bias_linear": False, "position_embedding_type": "rope"}
"""Fields of all published models, unless "models" has others."""
_LAYOUT = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "vp": "virtual_pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRun:
    """A run with its published speed."""

    row: Mapping[str, Any]
    """The published row, with "gpu", "format" and "graphs"."""
    model: Mapping[str, Any]
    """Megatron's fields of the model, with the layout of the run."""

    @property
    def family(self) -> str:
        """Name of the model without a remark in parentheses."""
        return str(self.row["model"]).partition(" (")[0]

    @property
    def group(self) -> tuple[str, str, str]:
        """GPU, precision, and kind of model."""
        return self.row["gpu"], self.row["format"], kind_of(self.shape, frozen=self.settings.frozen)

    @property
    def shape(self) -> ModelShape:
        """Sizes of the model and its layout."""
        return read_shape(self.model)

    @property
    def settings(self) -> StepSettings:
        """What determines the time of a step besides the sizes."""
        row = self.row
        replicas = row["gpus"] // (row["tp"] * row["pp"] * row["cp"])
        return StepSettings(
            gpu=GPU_SPEEDS[row["gpu"]],
            precision=row["format"],
            seq_length=row["seq_length"],
            micro_batch_size=row["micro_batch_size"],
            microbatches=max(1, row["global_batch_size"] // (replicas * row["micro_batch_size"])),
            replicas=replicas,
            graphs=row["graphs"],
            fused_experts=row["graphs"] == "step",
            fsdp=bool(row["fsdp"]),
            frozen=row["task"] == "lora",
        )

    @property
    def step_seconds(self) -> float:
        """Published time of a step."""
        row = self.row
        tokens: int = row["global_batch_size"] * row["seq_length"]
        speed: float = row["gpus"] * row["tokens_per_second_per_gpu"]
        return tokens / speed


@cache
def published_data() -> Mapping[str, Any]:
    """Return the file: "source", "models" by name, "runs", and "left_out" with reasons."""
    text = files("mb_plan.time").joinpath("published.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def published_runs() -> Iterator[PublishedRun]:
    """Yield the runs of models whose sizes are known."""
    data = published_data()
    for row in data["runs"]:
        if row["model"] in data["left_out"]:
            continue
        layout = {field: row[name] or 1 for name, field in _LAYOUT.items()}
        yield PublishedRun(row=row, model={**_UNPUBLISHED, **data["models"][row["model"]], **layout})


def kind_of(shape: ModelShape, *, frozen: bool = False) -> str:
    """Return the kind of a model that the published runs distinguish: dense, with experts, hybrid, or with adapters."""
    if frozen:
        return "with adapters"
    if shape.pattern is not None:
        return "hybrid"
    return "dense" if shape.experts is None else "with experts"


def trained_formats() -> set[tuple[str, str, str]]:
    """Return the combinations of GPU, precision and kind of model of the runs."""
    return {run.group for run in published_runs()}
