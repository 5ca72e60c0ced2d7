"""Data preparation ahead of a run: corpus, tokenizer and sample indices."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial

from mb_data import GPTDatasetConfig
from mb_data.sample_counts import SampleCounts
from mb_trainer.commands.errors import NothingToIndexError
from mb_trainer.config import ConfigContainer
from mb_trainer.data import build_datasets, build_vocabulary, padding_of, sample_counts
from mb_trainer.validation import build_sets, wants_sets

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexed:
    """Number of indexed samples of each split; validation sets are counted together."""

    train: int
    valid: int
    test: int


def build_indices(config: ConfigContainer, *, workers: int, progress: Progress) -> Indexed:
    """Build or find everything that the run needs, in this process.

    The run finds the files again, because their names depend on the data, the tokenizer, the number of samples and the
    settings, but not on the number of processes.

    Args:
        config: resolved, and finalized as for a run.
        workers: threads that build the indices of a blend's datasets.
        progress: called with the stage, the finished amount and the total.

    Raises:
        NothingToIndexError: the data have no indices.
        Errors raised while the datasets are built.
    """
    section = config.dataset
    if not isinstance(section, GPTDatasetConfig):
        raise NothingToIndexError(
            f"dataset: a {type(section).__name__} has no sample indices, which only data of .bin and .idx files have. "
            "Start the run; it has nothing to wait for."
        )
    section.num_dataset_builder_threads = workers
    vocabulary = build_vocabulary(config, progress=progress)
    build = partial(
        build_datasets,
        vocabulary=vocabulary,
        groups=None,
        reads=True,
        padding=padding_of(config.model),
        progress=progress,
    )
    counts = sample_counts(config)
    if not wants_sets(config.validation):
        return _sizes(*build(section, counts))
    train, _, test = build(section, replace(counts, valid=0))
    alone = SampleCounts(train=0, valid=max(1, counts.valid), test=0)
    sets = build_sets(
        section,
        config.validation,
        build=lambda each: build(each, alone)[1],
        gather=lambda value: [value],
    )
    return replace(_sizes(train, None, test), valid=sum(len(each.dataset or ()) for each in sets))


def _sizes(*splits: object) -> Indexed:
    train, valid, test = (0 if split is None else len(split) for split in splits)  # type: ignore[arg-type]
    return Indexed(train=train, valid=valid, test=test)


def as_dict(indexed: Indexed) -> dict[str, int]:
    """Return the number of samples by the name of the split."""
    return asdict(indexed)
