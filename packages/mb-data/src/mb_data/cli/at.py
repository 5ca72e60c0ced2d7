"""Command `at`: the text of one step of a run."""

import json
from pathlib import Path

from mb_data.loading.step_batch import (
    StepPosition,
    StepSequence,
    batch_settings_of,
    datasets_of,
    step_sequences,
)
from mb_data.megatron.sample_indices import IndexRequest
from mb_data.tokenizers.base import Tokenizer
from mb_data.tokenizers.run_tokenizer import prepare_tokenizer

SHOWN = 240
"""Characters of a text that are printed without `--full`."""


def print_step(
    run: Path,
    position: StepPosition,
    request: IndexRequest,
    *,
    rank: int | None,
    full: bool,
    as_json: bool,
) -> None:
    """Print the documents, offsets and text of the sequences of a step, with its losses.

    Args:
        run: Run folder, with run_config.yaml and metrics.jsonl.
        position: Position of the step in the data; see `find_step`.
        request: Settings of the run.
        rank: Data-parallel rank; None: all.
        full: Print whole texts.
        as_json: Print one JSON object, with the tokens and whole texts.

    Raises:
        UnknownStepError: The run has no such rank.
    """
    tokenizer = prepare_tokenizer(request.section, request.tokenizer, saved_in=request.tokenizer_folder)
    datasets = datasets_of(request, tokenizer)
    sequences = step_sequences(datasets, batch_settings_of(run), position, rank=rank)
    if as_json:
        print(json.dumps(_as_data(position, list(sequences), tokenizer), indent=1))
        return
    values = ", ".join(f"{name} {value:.6g}" for name, value in position.metrics.items())
    end = position.consumed + position.samples
    print(f"step {position.step}: samples {position.consumed:,} to {end - 1:,} of the run; {values}")
    for number, sequence in enumerate(sequences):
        print(f"\nsequence {number}, sample {sequence.index}")
        for part in sequence.parts:
            last = part.offset + part.tokens
            print(f"  document {part.document} of {part.source}, tokens {part.offset:,} to {last - 1:,}")
        for text in sequence.texts(tokenizer):
            shown = text if full or len(text) <= SHOWN else f"{text[:SHOWN]} ... ({len(text):,} characters)"
            print("\n".join(f"    {line}" for line in shown.splitlines()))


def _as_data(
    position: StepPosition, sequences: list[StepSequence], tokenizer: Tokenizer
) -> dict[str, object]:
    return {
        "step": position.step,
        "consumed_samples": position.consumed,
        "samples": position.samples,
        "data_parallel_size": position.replicas,
        "metrics": dict(position.metrics),
        "sequences": [
            {
                "index": sequence.index,
                "documents": [
                    {
                        "source": part.source,
                        "document": part.document,
                        "offset": part.offset,
                        "tokens": part.tokens,
                    }
                    for part in sequence.parts
                ],
                "tokens": list(sequence.tokens),
                "texts": sequence.texts(tokenizer),
            }
            for sequence in sequences
        ],
    }
