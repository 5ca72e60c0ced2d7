"""`mb pretrain`."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from mb_trainer.commands.errors import reported
from mb_trainer.job import pretrain as run_pretrain
from mb_trainer.reading import read_request


def pretrain(
    words: Sequence[str], *, files: Sequence[Path], out: Path | None, resume_with_changes: bool
) -> int:
    """Read what was asked for, train it, and return the exit code."""

    def work() -> int:
        request = read_request(words, files=files)
        outcome = run_pretrain(
            request.config,
            name=request.name,
            out=out,
            provenance=request.provenance,
            resume_with_changes=resume_with_changes,
            resume_command=shlex.join(["mb", *sys.argv[1:]]),
        )
        return outcome.exit_code

    return reported(work)
