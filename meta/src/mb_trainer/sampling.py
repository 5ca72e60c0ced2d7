"""Text generation from a run's newest intact checkpoint. Imports torch and megatron."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from mb_checkpoint import SelectedCheckpoint, load_model_weights
from mb_checkpoint.integrity import newest_intact
from mb_checkpoint.layout import checkpoints_in
from mb_data import load_saved_tokenizer
from mb_data.tokenizers import Tokenizer
from mb_launch import World, pick_device
from mb_models import ModelConfigError, family_of, generate
from mb_models.peft.loading import load_merged
from mb_models.unsharded import unshard
from mb_trainer.config import ConfigContainer
from mb_trainer.errors import NoCheckpointError
from mb_trainer.model import layers_of, model_groups
from mb_trainer.model_weights import weights_loader


def sample_run(
    run: Path,
    *,
    prompt: str,
    tokens: int,
    temperature: float,
    seed: int,
    log: Callable[[str], object] = lambda _line: None,
) -> Iterator[str]:
    """Yield the prompt, then the generated text, piece by piece.

    Runs in one process under any parallelism of the run: the weights are merged while they are loaded.

    Args:
        run: run folder, folder of checkpoints, or one checkpoint.
        prompt: text to continue.
        tokens: maximum number of generated tokens.
        temperature: 0 selects the most likely token.
        seed: seed of the sampling.
        log: receives one line per damaged checkpoint that was skipped.

    Raises:
        NoCheckpointError: the folder has no checkpoint.
        mb_checkpoint.CheckpointNotFoundError: it has some, and none is intact.
        mb_checkpoint.IncompleteCheckpointError: it is one checkpoint, and damaged.
        mb_models.PromptError: the prompt is empty.
        mb_models.ModelConfigError: the model does not generate text.
    """
    selection = newest_of(run, purpose="sample from", log=log)
    config = ConfigContainer.from_yaml(selection.path / "run_config.yaml")
    unshard(config.model)
    tokenizer = load_saved_tokenizer(selection.path, config.tokenizer)
    if not family_of(config.model).continues_text:
        raise ModelConfigError(
            [
                f"model: a {type(config.model).__name__} continues no text, because it answers to more than a "
                "prompt: a text with gaps, or an image. Sample a GPT or a hybrid."
            ]
        )
    with loaded_model(config, selection.path, tokenizer_vocab_size=tokenizer.vocab_size) as model:
        numbers = generate(
            model,
            tokenizer.encode(prompt),
            max_new_tokens=tokens,
            vocab_size=tokenizer.vocab_size,
            context_length=config.model.seq_length,
            temperature=temperature,
            stop_token=tokenizer.eod,
            generator=torch.Generator().manual_seed(seed),
        )
        yield from stream_text(tokenizer, prompt, numbers)


@contextmanager
def loaded_model(config: ConfigContainer, checkpoint: Path, *, tokenizer_vocab_size: int) -> Iterator[Any]:
    """Build the model of a checkpoint in this process, with its weights loaded and adapters merged, for the block."""
    device = pick_device(World())
    with model_groups(World(), config, device=device) as groups:
        provider = family_of(config.model).provider(
            config.model,
            layer_spec=layers_of(config, device).spec,
            device=device,
            tokenizer_vocab_size=tokenizer_vocab_size,
        )
        chunks = provider.provide_chunks(groups)
        if config.peft is None:
            load_model_weights(checkpoint, chunks, pg_collection=groups, verify_integrity=False)
        else:
            load_merged(config.peft, chunks, weights_loader(checkpoint, chunks, config, groups))
        chunks[0].eval()
        yield chunks[0]


def newest_of(run: Path, *, purpose: str, log: Callable[[str], object]) -> SelectedCheckpoint:
    """Return the newest intact checkpoint of a run folder, or of a folder of checkpoints; `log` logs the skipped ones.

    Raises:
        NoCheckpointError: there is none.
        mb_checkpoint.CheckpointNotFoundError, mb_checkpoint.IncompleteCheckpointError: all are damaged.
    """
    checkpoints = checkpoints_in(run)
    selection = newest_intact(checkpoints) if checkpoints.is_dir() else None
    if selection is None:
        raise NoCheckpointError(
            f"{run}: has no checkpoint to {purpose}. Name the folder of a run that saved one, such as runs/gpt_tiny."
        )
    for passed in selection.skipped:
        log(f"skipped {passed.path}: {passed.reason}")
    if selection.skipped:
        log(f"taken instead: {selection.path}")
    return selection


def stream_text(tokenizer: Tokenizer, prompt: str, numbers: Iterator[int]) -> Iterator[str]:
    """Yield the prompt, then each piece of text as soon as its bytes form complete characters."""
    yield prompt
    pending: list[int] = []
    for number in numbers:
        pending.append(number)
        text = tokenizer.decode(pending)
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):
            yield text
            pending = []
    if pending:
        yield tokenizer.decode(pending)
