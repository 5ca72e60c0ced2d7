"""`mb sample`."""

import sys
from functools import partial
from importlib import import_module
from pathlib import Path

import mb_host
from mb_trainer.commands.errors import reported


def sample(run: Path, *, prompt: str, tokens: int, temperature: float, seed: int) -> int:
    """Print the prompt, then the generated text token by token. Return the exit code."""

    def work() -> int:
        mb_host.install()  # must run before megatron is imported; with a GPU only the patches of Megatron are applied
        sample_run = import_module("mb_trainer.sampling").sample_run
        log = partial(print, file=sys.stderr)
        for text in sample_run(
            run, prompt=prompt, tokens=tokens, temperature=temperature, seed=seed, log=log
        ):
            print(text, end="", flush=True)
        print()
        return 0

    return reported(work)
