"""Interface between dataset sections and the datasets that they build. Standard library only."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from typing import Any, ClassVar, TypeVar

from mb_data.loading.batch_padding import NO_PADDING, BatchPadding
from mb_data.loading.config import DataloaderConfig
from mb_data.progress import Progress
from mb_schema.sections import take_aliases

Section = TypeVar("Section")


def accept_sequence_length(cls: type[Section]) -> type[Section]:
    """Accept `sequence_length` as a constructor argument in place of the field `seq_length`.

    The same holds for any property of the class that can be assigned, such as `offline_packing_specs`.

    The constructor raises TypeError if both are given, or neither.
    """
    construct = cls.__init__

    @wraps(construct)
    def constructor(self: Section, *args: Any, **values: Any) -> None:
        aliases = take_aliases(cls, values)
        if "sequence_length" in values:
            if args or "seq_length" in values:
                raise TypeError(
                    f"{cls.__name__}: seq_length and sequence_length are both given, but name the same field. "
                    "Pass one of them."
                )
            values["seq_length"] = values.pop("sequence_length")
            construct(self, *args, **values)
            self.seq_length = values["seq_length"]  # type: ignore[attr-defined]  # recorded as set
        else:
            construct(self, *args, **values)
        for name, value in aliases.items():
            setattr(self, name, value)

    setattr(cls, "__init__", constructor)  # noqa: B010 (a type checker forbids the plain assignment)
    return cls


DatasetSplits = tuple[Any | None, Any | None, Any | None]
"""Datasets of train, validation and test; None for a split that does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetBuildContext:
    """Arguments of a dataset provider. A sample count of 0 requests no such split."""

    train_samples: int
    """Training samples (sequences)."""

    valid_samples: int
    """Validation samples (sequences)."""

    test_samples: int
    """Test samples (sequences)."""

    complete_validation: bool = False
    """Whether the validation dataset of fine-tuning data is one epoch of its samples, instead of `valid_samples`."""

    tokenizer: Any = None
    """Tokenizer of this package or of Megatron. None: the provider needs none or has its own."""

    pg_collection: Any = None
    """Megatron's ProcessGroupCollection, for providers that read different data on different ranks."""

    progress: Progress | None = None
    """Called with the stage, the number of sample indices that are built or loaded, and their total."""

    reads_data: bool = True
    """Whether this rank reads samples. The other ranks take part in collective calls, and may build nothing."""

    micro_batch_size: int = 1
    """Sequences of a microbatch, for providers that return complete batches."""

    padding: BatchPadding = NO_PADDING
    """Padding that the model requires of samples of different lengths."""

    log: Callable[[str], None] | None = None
    """Called with one line of text about the samples of each file of fine-tuning data."""


@dataclass(kw_only=True)
class DatasetProvider(DataloaderConfig, ABC):
    """Base class for custom dataset sections: the fields of the loader, and one method to implement."""

    @abstractmethod
    def build_datasets(self, context: DatasetBuildContext) -> DatasetSplits:
        """Return the training, validation and test datasets; None for a split that does not exist.

        Called on every rank. A dataset is a map-style dataset whose samples are dictionaries of tensors.
        """


@dataclass(kw_only=True)
class BuiltInDatasetConfig(DatasetProvider):
    """Base class of this package's dataset sections.

    A section names the function that builds its datasets. The function is imported at the first call, so that sections
    load without NumPy, torch and Megatron Core.
    """

    builder: ClassVar[str]
    """Function of the section and the context, as "module:function"."""
    field_aliases: ClassVar[Mapping[str, str]] = {"sequence_length": "seq_length"}
    """Name of another trainer -> field."""

    def build_datasets(self, context: DatasetBuildContext) -> DatasetSplits:
        """Return the training, validation and test datasets; None for a split that does not exist.

        Collective like the function in `builder`, and raises its errors.
        """
        module, _, function = self.builder.partition(":")
        splits: DatasetSplits = getattr(import_module(module), function)(self, context)
        return splits
