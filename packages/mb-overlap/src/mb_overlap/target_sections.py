"""Sections from which overlap settings are read and to which they are written."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, cast

from mb_overlap.field_access import field_name, has_field, read_field
from mb_overlap.resolve import DATA_PARALLEL_FIELDS, MODEL_FIELDS, ParallelLayout


class ModelSection(Protocol):
    """Fields of a model configuration that are read."""

    @property
    def tensor_model_parallel_size(self) -> int:
        """Number of ranks in the tensor-parallel group."""

    @property
    def pipeline_model_parallel_size(self) -> int:
        """Number of pipeline stages."""

    @property
    def virtual_pipeline_model_parallel_size(self) -> int | None:
        """Number of model chunks in a stage; None counts as 1."""

    @property
    def sequence_parallel(self) -> bool:
        """Whether activations are split along the sequence between tensor-parallel regions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSections:
    """Model, optimizer and DDP sections that receive overlap settings; objects of any type."""

    model: object
    """Read for its parallel sizes; receives the tensor- and pipeline-parallel settings."""
    optimizer: object
    """Receives the data-parallel settings."""
    ddp: object
    """Receives the data-parallel settings."""

    def targets(self) -> Iterator[tuple[str, object, str]]:
        """Yield (path of the section, section, field) for each writable field."""
        for path, section, names in (
            ("model", self.model, MODEL_FIELDS),
            ("optimizer", self.optimizer, DATA_PARALLEL_FIELDS),
            ("ddp", self.ddp, DATA_PARALLEL_FIELDS),
        ):
            yield from ((path, section, name) for name in names if has_field(section, name))

    def layout(self, *, dp: int | None, transformer_engine: bool) -> ParallelLayout:
        """Return the values that the rules read.

        Raises:
            AttributeError: the model section lacks one of the fields of `ModelSection`.
        """
        tp, pp, vp, sequence_parallel = (self._size(name) for name in _SIZES)
        return ParallelLayout(
            tp=tp,
            pp=pp,
            vp=vp,
            dp=dp,
            sequence_parallel=sequence_parallel,
            transformer_engine=transformer_engine,
            transformer_impl=cast("str | None", read_field(self.model, "transformer_impl")),
            distributed_optimizer=any(
                read_field(part, "use_distributed_optimizer") for part in (self.ddp, self.optimizer)
            ),
            num_buckets=cast("int | None", read_field(self.ddp, "num_buckets")),
        )

    def _size(self, name: str) -> Any:
        if field_name(self.model, name) is None:
            raise AttributeError(
                f"model.{name}: is missing, because {type(self.model).__name__} has no such field. "
                "Pass the model's configuration first, with the fields of mb_overlap.ModelSection."
            )
        return read_field(self.model, name)


_SIZES = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "sequence_parallel",
)
