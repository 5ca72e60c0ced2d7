"""Text and perplexity of a run's newest intact checkpoint. Imports torch and megatron."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch

from mb_checkpoint import read_train_state
from mb_data import prepare_tokenizer
from mb_data.trainer_api import (
    decode_stream,
    encode_prompt,
    end_of_answer,
    keep_partial_sequence,
    last_validation,
)
from mb_launch import pick_device, read_world
from mb_models import family_of, generate
from mb_models.trainer_api import (
    Perplexity,
    all_logits,
    load_merged,
    measure_sets,
    require_text_family,
    stop_tokens,
)
from mb_trainer.run.data import batch_form, batch_settings, build_datasets
from mb_trainer.run.model import model_groups, select_layers
from mb_trainer.run.saved_run import SavedRun


def sample_run(
    run: Path,
    *,
    prompts: Sequence[str],
    tokens: int,
    temperature: float,
    seed: int,
    chat: bool = False,
    log: Callable[[str], object] = lambda _line: None,
) -> Iterator[tuple[int, str]]:
    """Yield the number of a prompt and its text, then the generated text, piece by piece; then the next prompt.

    Runs under any parallelism of the run: weights are merged while they are loaded, and several processes divide them
    by tensor parallelism. `temperature` 0 selects the most likely token. A text ends at the end-of-document token, at
    those of a carried generation_config.json, and with `chat` where the template ends an answer. Raises the errors of
    `SavedRun.find`, `mb_data.chat.prompt.encode_prompt` and `mb_models.generate`, and `mb_models.ModelConfigError` for
    a model that does not generate text.
    """
    saved = SavedRun.find(run, purpose="sample from", log=log, processes=processes())
    tokenizer = saved.tokenizer()
    require_text_family(saved.config.model)
    encoded = [encode_prompt(tokenizer, prompt, chat=chat) for prompt in prompts]
    ends = {tokenizer.eod, end_of_answer(tokenizer) if chat else None, *stop_tokens(saved.checkpoint.path)}
    options: dict[str, Any] = {
        "max_new_tokens": tokens,
        "vocab_size": tokenizer.vocab_size,
        "context_length": saved.config.model.seq_length,
        "temperature": temperature,
    }
    with loaded_model(saved, tokenizer_vocab_size=tokenizer.vocab_size) as model:
        for number, (text, ids) in enumerate(encoded):
            yield number, text
            generator = torch.Generator().manual_seed(seed)
            ids_of_text = takewhile(
                lambda token: token not in ends,
                generate(all_logits(model), ids, **options, generator=generator),
            )
            for piece in decode_stream(tokenizer, ids_of_text):
                yield number, piece


def evaluate_run(run: Path, *, complete: bool, log: Callable[[str], object]) -> tuple[int, list[Perplexity]]:
    """Return the step of a run's newest intact checkpoint, and its perplexity on each validation set.

    The sequences are those of the last validation before the checkpoint, or with `complete` all held-out ones, also
    the shorter one at the end of the data. Runs as `sample_run`, and raises its errors.
    """
    saved = SavedRun.find(run, purpose="evaluate", log=log, processes=processes())
    config, step_state = saved.config, read_train_state(saved.checkpoint.path / "train_state.pt")
    config.data_parallel_size = 1
    if complete:
        config.validation.full_validation = True
        config.validation.eval_interval = config.validation.eval_interval or 1  # a run may have none
        keep_partial_sequence(config.dataset)
        config.train.train_iters, config.train.train_samples = 0, None  # no training data is opened
    tokenizer = prepare_tokenizer(config.dataset, config.tokenizer, saved_in=saved.checkpoint.path)
    with loaded_model(saved, tokenizer_vocab_size=tokenizer.vocab_size) as model:
        datasets = build_datasets(config, tokenizer=tokenizer, pg_collection=model.pg_collection, log=log)
        sets = last_validation(
            datasets, batch_settings(config), consumed_samples=int(step_state["consumed_valid_samples"])
        )
        forward_step = family_of(config.model).forward_step(**batch_form(config))
        return int(step_state["step"]), measure_sets(forward_step, model, sets)


def processes() -> int:
    """Return the number of processes that a launcher started."""
    return read_world(os.environ).world_size


@contextmanager
def loaded_model(saved: SavedRun, *, tokenizer_vocab_size: int) -> Iterator[Any]:
    """Build the model of a run, with its weights loaded and adapters merged, for the length of a block."""
    config, world = saved.config, read_world(os.environ)
    device = pick_device(world)
    with model_groups(world, config, device=device) as groups:
        layers = select_layers(config.model, device)
        provider = family_of(config.model).provider(
            layers.section_of(config.model),
            layer_spec=layers.spec,
            device=device,
            tokenizer_vocab_size=tokenizer_vocab_size,
        )
        chunks = provider.provide_chunks(groups)
        if config.peft is None:
            saved.load(chunks, groups)
        else:
            load_merged(config.peft, chunks, partial(saved.load, chunks, groups))
        chunks[0].eval()
        yield chunks[0]
