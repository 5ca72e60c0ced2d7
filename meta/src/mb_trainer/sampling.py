"""Text generation from a run's newest intact checkpoint. Imports torch and megatron."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mb_data.tokenizers import decode_stream
from mb_launch import World, pick_device
from mb_models import family_of, generate
from mb_models.families import require_text_family
from mb_models.peft.loading import load_merged
from mb_trainer.model import layers_of, model_groups
from mb_trainer.saved_run import SavedRun


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
        mb_checkpoint.CheckpointNotFoundError: the folder has no checkpoint, or none that is intact.
        mb_checkpoint.IncompleteCheckpointError: it is one checkpoint, and damaged.
        mb_models.PromptError: the prompt is empty.
        mb_models.ModelConfigError: the model does not generate text.
    """
    saved = SavedRun.find(run, purpose="sample from", log=log)
    tokenizer = saved.tokenizer()
    require_text_family(saved.config.model)
    with loaded_model(saved, tokenizer_vocab_size=tokenizer.vocab_size) as model:
        numbers = generate(
            model,
            tokenizer.encode(prompt),
            max_new_tokens=tokens,
            vocab_size=tokenizer.vocab_size,
            context_length=saved.config.model.seq_length,
            temperature=temperature,
            stop_token=tokenizer.eod,
            generator=torch.Generator().manual_seed(seed),
        )
        yield prompt
        yield from decode_stream(tokenizer, numbers)


@contextmanager
def loaded_model(saved: SavedRun, *, tokenizer_vocab_size: int) -> Iterator[Any]:
    """Build the model of a run in this process, with its weights loaded and adapters merged, for the block."""
    config, device = saved.config, pick_device(World())
    with model_groups(World(), config, device=device) as groups:
        provider = family_of(config.model).provider(
            config.model,
            layer_spec=layers_of(config, device).spec,
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
