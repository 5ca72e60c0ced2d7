"""Command `at`: the text of one step of a run."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from mb_data.cli.options import StepOptions
from mb_data.loading.step_batch import (
    StepPosition,
    StepSequence,
    batch_settings_of,
    step_sequences,
)
from mb_data.megatron.sample_indices import IndexRequest
from mb_data.text.shards.origin import document_origins
from mb_data.tokenizers.base import Tokenizer
from mb_schema.json_rows import plain_number

SHOWN = 240
"""Characters of a text that are printed without `--full`."""


def print_step(options: StepOptions, position: StepPosition, request: IndexRequest) -> None:
    """Print the documents, offsets and text of the sequences of a step, with its losses; as JSON also the tokens.

    Args:
        options: Arguments of the command, with the run folder, which has run_config.yaml and metrics.jsonl.
        position: Position of the step in the data; see `find_step`.
        request: Settings of the run.

    Raises:
        UnknownStepError: The run has no such rank.
        ShardPlanError: With `--origins`, an input changed since the shards were built.
    """
    tokenizer = request.load_tokenizer()
    datasets = request.build(tokenizer)
    sequences = list(step_sequences(datasets, batch_settings_of(options.run), position, rank=options.rank))
    origins = _origins(sequences) if options.origins else {}
    if options.json:
        print(json.dumps(_as_data(position, sequences, tokenizer, origins), indent=1))
        return
    values = ", ".join(f"{name} {value:.6g}" for name, value in position.metrics.items())
    end = position.consumed + position.samples
    print(f"step {position.step}: samples {position.consumed:,} to {end - 1:,} of the run; {values}")
    for number, sequence in enumerate(sequences):
        print(f"\nsequence {number}, sample {sequence.index}")
        for part in sequence.parts:
            last = part.offset + part.tokens
            origin = origins.get((part.source, part.document))
            print(
                f"  document {part.document} of {part.source}, tokens {part.offset:,} to {last - 1:,}"
                + (f", from {origin}" if origin else "")
            )
        for text in sequence.texts(tokenizer):
            shown = (
                text
                if options.full or len(text) <= SHOWN
                else f"{text[:SHOWN]} ... ({len(text):,} characters)"
            )
            print("\n".join(f"    {line}" for line in shown.splitlines()))


def _origins(sequences: Sequence[StepSequence]) -> dict[tuple[str, int], str]:
    """Return the file and line of each document of shards, by prefix and number."""
    documents: dict[str, set[int]] = defaultdict(set)
    for part in (part for sequence in sequences for part in sequence.parts):
        documents[part.source].add(part.document)
    return {
        (source, number): origin
        for source, numbers in documents.items()
        for number, origin in document_origins(source, numbers).items()
    }


def _as_data(
    position: StepPosition,
    sequences: Sequence[StepSequence],
    tokenizer: Tokenizer,
    origins: Mapping[tuple[str, int], str],
) -> dict[str, object]:
    return {
        "step": position.step,
        "consumed_samples": position.consumed,
        "samples": position.samples,
        "data_parallel_size": position.replicas,
        "metrics": {name: plain_number(value) for name, value in position.metrics.items()},
        "sequences": [
            {
                "index": sequence.index,
                "documents": [
                    {**asdict(part), "origin": origins.get((part.source, part.document))}
                    for part in sequence.parts
                ],
                "tokens": list(sequence.tokens),
                "texts": sequence.texts(tokenizer),
            }
            for sequence in sequences
        ],
    }
