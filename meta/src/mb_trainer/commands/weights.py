"""`mb import-hf` and `mb export-hf`: weights between Hugging Face folders and checkpoints."""

import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import mb_host
from mb_models.trainer_api import ExportPart, OutputExistsError
from mb_schema.paths import is_utf8, printable
from mb_trainer.errors import OutputNameError


def converter() -> Any:
    """Return the module that converts weights on the CPU, which imports megatron."""
    mb_host.install(force=True)  # before megatron is imported
    return import_module("mb_trainer.hugging_face")


def import_hf(folder: Path, out: Path) -> int:
    """Write checkpoint and configuration from a Hugging Face folder, and return the exit code."""
    require_usable(out)
    parameters = converter().import_folder(folder, out)
    print(f"{parameters / 1e6:.1f} M parameters in {out / 'checkpoints'}")
    print(f"fine-tune them: mb finetune {out / 'run_config.yaml'}")
    return 0


def export_hf(run: Path, out: Path, *, adapters: bool, part: ExportPart, **options: Any) -> int:
    """Write the newest checkpoint of a run as a Hugging Face folder, and return the exit code.

    `options` are further ones of `export_run`.
    """
    require_usable(out, shared=part.count > 1)
    log = partial(print, file=sys.stderr)
    step = converter().export_run(run, out, adapters=adapters, part=part, log=log, **options)
    share = "" if part.count == 1 else f"part {part.index}/{part.count} of the "
    print(f"{share}{'adapters' if adapters else 'weights'} of step {step} in {out}")
    return 0


def require_usable(out: Path, *, shared: bool = False) -> None:
    """Reject an output folder that libraries cannot write, and one with files unless other processes write to it.

    Raises:
        OutputNameError: its path is not UTF-8.
        OutputExistsError: it has files, which would be mixed with the new ones.
    """
    if not is_utf8(str(out)):
        raise OutputNameError(f"--out: {printable(str(out))} is not UTF-8. Name another folder.")
    if not shared and out.is_dir() and any(out.iterdir()):
        raise OutputExistsError(
            f"--out: {out} holds files, which would be mixed with the new ones. Name another."
        )
