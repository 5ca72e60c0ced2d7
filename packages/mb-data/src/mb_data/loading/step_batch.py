"""Samples of one step of a run: where they come from, and their tokens. Requires torch.

The position of a step in the data is that of the run's metrics, which count the consumed samples through batch
ramp-ups, discarded steps and resumes. The samples at a position do not depend on the number of ranks.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from mb_data.errors import UnknownStepError
from mb_data.loading.batch_iterators import BatchSettings
from mb_data.loading.document_parts import DocumentPart, document_parts
from mb_data.loading.loaders import rank_sampler
from mb_data.run_data import RunDatasets
from mb_data.tokenizers.base import Tokenizer
from mb_schema.json_rows import number_of, parse_row, step_of_row
from mb_schema.yaml_settings import parse_settings

CONSUMED, BATCH, WORLD = "samples vs steps", "batch-size", "world-size"
"""Names in metrics.jsonl: consumed samples after a step, its samples over all ranks, and processes."""
WORLD_OF_START = "world_size"
"""Processes in the event with which a run starts or resumes."""
_LARGEST = 2**63
_TOKENS = ("tokens", "text_enc", "input_ids")
_SIZES = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPosition:
    """Position of a step in the data of a run."""

    step: int
    consumed: int
    """Samples that all ranks consumed before."""
    samples: int
    """Samples of the step, over all ranks."""
    replicas: int
    """Data-parallel size of the run."""
    metrics: Mapping[str, float]
    """Losses, gradient norm and learning rate of the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSequence:
    """Sequence of a step."""

    index: int
    """Index of the sample in the dataset."""
    parts: tuple[DocumentPart, ...]
    """Documents, in order; empty for data that has none."""
    tokens: tuple[int, ...]
    starts: tuple[int, ...]
    """First token of each packed sample; (0,) if samples are not packed."""

    def texts(self, tokenizer: Tokenizer) -> list[str]:
        """Return the text of each packed sample, or of the sequence, without placeholders such as those of an image."""
        ends, known = (*self.starts[1:], len(self.tokens)), range(tokenizer.vocab_size)
        return [
            tokenizer.decode([token for token in self.tokens[a:b] if token in known])
            for a, b in zip(self.starts, ends, strict=True)
        ]


def find_step(run: Path, step: int) -> StepPosition:
    """Return the position of a step from metrics.jsonl and run_config.yaml of a run folder.

    A step that was made again after a resume has the position of the last time.

    Raises:
        UnknownStepError: The run has not made the step, or its metrics lack the position.
        OSError: A file cannot be read.
    """
    file = run / "metrics.jsonl"
    rows = list(_rows(file))
    # The last row: a step that was repeated after a resume is recorded again.
    of_step = next(
        (row for row in reversed(rows) if row["step"] == step and CONSUMED in row and BATCH in row), None
    )
    if of_step is None:
        last = max((row["step"] for row in rows), default=0)
        raise UnknownStepError(
            f"{file}: has no step {step} with the position in the data, because the run ended at step {last} or that "
            f"step was not recorded. Give a step from 1 to {last}."
        )
    model = _settings(run).get("model") or {}
    sizes = [model.get(name) or 1 for name in _SIZES]
    world = _world_size(run, rows, step)
    consumed, samples = of_step[CONSUMED], of_step[BATCH]
    numbers = (*sizes, world, consumed, samples)
    if not all(isinstance(number, int | float) and 1 <= number < _LARGEST for number in numbers):
        raise UnknownStepError(
            f"{file}: step {step} has no position in the data, because its numbers are damaged ({CONSUMED}={consumed}, "
            f"{BATCH}={samples}, {WORLD}={world}, parallel sizes {sizes}). Restore the run folder."
        )
    ranks = int(sizes[0]) * int(sizes[1]) * int(sizes[2])
    samples = int(samples)
    return StepPosition(
        step=step,
        consumed=int(consumed) - samples,
        samples=samples,
        replicas=max(1, int(world) // ranks),
        metrics={
            name: number
            for name, value in of_step.items()
            if ("loss" in name or name in ("grad-norm", "learning-rate"))
            and (number := number_of(value)) is not None
        },
    )


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects with a step in a file of JSON lines; others, such as cut ones, are left out."""
    with file.open("rb") as lines:
        rows = (parse_row(line) for line in lines)
        yield from (row for row in rows if row is not None and step_of_row(row) is not None)


def _world_size(run: Path, rows: Sequence[Mapping[str, Any]], step: int) -> Any:
    """Return the processes of a run in a step: of the start before it, otherwise of the next row with their number."""
    events = run / "events.jsonl"
    started = _rows(events) if events.is_file() else ()
    starts = [event for event in started if WORLD_OF_START in event and event["step"] < step]
    if starts:
        return starts[-1][WORLD_OF_START]
    recorded = [row for row in rows if WORLD in row]
    last = recorded[-1] if recorded else {WORLD: 1}
    return next((row for row in recorded if row["step"] >= step), last)[WORLD]


def batch_settings_of(run: Path) -> BatchSettings:
    """Return the microbatch size and the seed of a run folder's run_config.yaml."""
    settings = _settings(run)
    train = settings.get("train") or {}
    return BatchSettings(
        micro_batch_size=train.get("micro_batch_size") or 1,
        seed=(settings.get("rng") or {}).get("seed", 1234),
    )


def _settings(run: Path) -> dict[str, Any]:
    file = run / "run_config.yaml"
    settings = parse_settings(file.read_bytes(), yaml)
    if settings is None or not all(
        isinstance(settings.get(name) or {}, dict) for name in ("model", "train", "rng")
    ):
        raise UnknownStepError(f"{file}: holds no settings of a run. Restore the file.")
    return settings


def step_sequences(
    datasets: RunDatasets, settings: BatchSettings, position: StepPosition, *, rank: int | None = None
) -> Iterator[StepSequence]:
    """Yield the sequences of a step, in their order.

    Args:
        datasets: Those of the run.
        settings: Microbatch size and seed.
        position: The step.
        rank: Data-parallel rank; None: the sequences of all ranks.

    Raises:
        UnknownStepError: The rank does not exist, or the data comes from an external loader, which has no positions.
    """
    dataset, replicas = datasets.train, 1 if rank is None else position.replicas
    if rank is not None and rank >= position.replicas:
        raise UnknownStepError(
            f"rank {rank}: step {position.step} has {position.replicas} data-parallel ranks, counted from 0. Choose "
            "one of them."
        )
    if datasets.section.dataloader_type == "external":
        raise UnknownStepError(
            "dataset.dataloader_type: external loaders yield finished batches, whose samples are not known. Look into "
            "the loader."
        )
    sampler = rank_sampler(
        datasets.section,
        dataset,
        seed=settings.seed,
        global_batch_size=position.samples,  # as it was rounded in the run
        consumed_samples=position.consumed,
        micro_batch_size=settings.micro_batch_size,
        data_parallel_rank=rank or 0,
        data_parallel_size=replicas,
    )
    expected, yielded = position.samples // replicas, 0
    for indices in sampler:
        for index in indices:
            yield _sequence(dataset, index)
        yielded += len(indices)
        if yielded >= expected:
            return


def _sequence(dataset: Any, index: int) -> StepSequence:
    item = dataset[index]
    tokens = next(item[name] for name in _TOKENS if name in item)
    numbers = tuple(int(token) for token in tokens)
    starts: Sequence[int] = (0,)
    if "cu_seqlens" in item:
        starts = sorted({int(start) for start in item["cu_seqlens"]} - {len(numbers)})
    return StepSequence(
        index=index, parts=tuple(document_parts(dataset, index)), tokens=numbers, starts=tuple(starts)
    )
