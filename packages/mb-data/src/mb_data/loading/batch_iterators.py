"""Iterators over the batches of one rank of a run. Requires torch."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

from mb_data.loading.config import DataloaderConfig
from mb_data.loading.loaders import build_data_iterator, stop_workers


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRanks:
    """Position of a rank among those that share the data, and among the pipeline stages."""

    data_parallel_rank: int = 0
    data_parallel_size: int = 1
    pipeline_rank: int = 0
    pipeline_size: int = 1

    @classmethod
    def of(cls, groups: Any) -> "DataRanks":
        """Return the position in process groups: an object with `dp` and `pp`, each with `rank()` and `size()`.

        Megatron Core's ProcessGroupCollection is one.
        """
        return cls(
            data_parallel_rank=groups.dp.rank(),
            data_parallel_size=groups.dp.size(),
            pipeline_rank=groups.pp.rank(),
            pipeline_size=groups.pp.size(),
        )

    @property
    def reads_data(self) -> bool:
        """True on the first pipeline stage, which reads tokens, and on the last, which reads labels."""
        return self.pipeline_rank in (0, self.pipeline_size - 1)


ONE_RANK = DataRanks()
"""Position of a rank that shares the data with no other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """Batch sizes of a run, and what else determines its batches."""

    micro_batch_size: int = 1
    """Sequences in one training microbatch of one rank."""

    global_batch_size: int | None = None
    """Sequences in one training step. Required by the loader type `batch`."""

    round_down: bool = False
    """Round global batches down to a multiple of the microbatches of all ranks."""

    eval_micro_batch_size: int | None = None
    """Sequences in one evaluation microbatch of one rank; None: as in training."""

    eval_global_batch_size: int | None = None
    """Sequences in one evaluation batch; None: as in training."""

    eval_iters: int = 0
    """Evaluation batches in one evaluation of each set, and in the final test."""

    model_chunks: int = 1
    """Model chunks of this rank; more than 1 under an interleaved pipeline."""

    routed: bool = False
    """The model has experts, so intermediate pipeline stages read the padding of a section that pads."""

    seed: int = 1234
    """Seed of the cyclic order and of the workers' random number generators."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchIterators:
    """Factory of this rank's batch iterators over the datasets of a section."""

    section: DataloaderConfig
    settings: BatchSettings
    ranks: DataRanks = ONE_RANK
    worker_init_fn: Callable[[int], None] | None = None
    """Called with the worker id at the start of each worker process."""

    opened: "WeakSet[Any]" = field(default_factory=WeakSet)
    """Iterators that this factory has returned and that still exist."""

    def close(self) -> None:
        """Stop the worker processes of all iterators. They cannot be used afterwards."""
        for iterator in list(self.opened):
            stop_workers(iterator)

    def train(self, dataset: Any, *, consumed_samples: int) -> Any:
        """Return an iterator over microbatches that starts after the samples consumed by all ranks.

        Under interleaving, return a list with one iterator per model chunk, all of which yield the same batches. Return
        None without a dataset, and on pipeline stages that read no data. Raises the errors of `build_data_iterator`.
        """
        return self._iterate(
            dataset, consumed_samples, self.settings.micro_batch_size, self.settings.global_batch_size
        )

    def evaluation(self, dataset: Any, *, consumed_samples: int, repeats: bool = False) -> Any:
        """Return the same as `train`, with the batch sizes of evaluation; `repeats`: without an end."""
        settings = self.settings
        micro_batch_size = settings.eval_micro_batch_size or settings.micro_batch_size
        global_batch_size = settings.eval_global_batch_size or settings.global_batch_size
        return self._iterate(dataset, consumed_samples, micro_batch_size, global_batch_size, repeats=repeats)

    def _iterate(
        self,
        dataset: Any,
        consumed_samples: int,
        micro_batch_size: int,
        global_batch_size: int | None,
        *,
        repeats: bool = False,
    ) -> Any:
        """Return an iterator of microbatches, or one for each model chunk; None on a rank that reads no data."""
        on_all_stages = self.section.is_packed or (self.section.is_padded and self.settings.routed)
        if dataset is None or not (self.ranks.reads_data or on_all_stages):
            return None
        if self.settings.round_down and global_batch_size:
            step = micro_batch_size * self.ranks.data_parallel_size
            global_batch_size = global_batch_size // step * step
        # An interleaved schedule runs the chunks of a rank on different microbatches at a time: each reads on its own.
        chunks = [
            build_data_iterator(
                dataset,
                config=self.section,
                consumed_samples=consumed_samples,
                micro_batch_size=micro_batch_size,
                data_parallel_rank=self.ranks.data_parallel_rank,
                data_parallel_size=self.ranks.data_parallel_size,
                seed=self.settings.seed,
                global_batch_size=global_batch_size,
                repeats=repeats,
                worker_init_fn=self.worker_init_fn,
            )
            for _ in range(self.settings.model_chunks)
        ]
        if self.section.num_workers > 0 and self.section.dataloader_type != "external":
            self.opened.update(chunks)
        return chunks if len(chunks) > 1 else chunks[0]
