"""Implementation of `mb import-hf` and `mb export-hf`."""

import sys
from functools import partial
from importlib import import_module
from pathlib import Path

import mb_host
from mb_trainer.commands.errors import reported
from mb_trainer.errors import OutputExistsError


def import_hf(folder: Path, *, out: Path) -> int:
    """Convert a folder in Hugging Face format into a checkpoint. Return the exit code."""

    def work() -> int:
        refuse_files_in(out)
        mb_host.install(force=True)  # must run before megatron is imported; weights are converted on the CPU
        parameters = import_module("mb_trainer.hugging_face").import_folder(folder, out)
        print(f"{parameters / 1e6:.1f} M parameters in {out / 'checkpoints'}")
        print(f"fine-tune them: mb finetune {out / 'run_config.yaml'}")
        return 0

    return reported(work)


def export_hf(run: Path, *, out: Path, adapters: bool) -> int:
    """Write a run's newest intact checkpoint, or only its adapters, in Hugging Face format; return the exit code."""

    def work() -> int:
        refuse_files_in(out)
        mb_host.install(force=True)
        export_run = import_module("mb_trainer.hugging_face").export_run
        step = export_run(run, out, adapters=adapters, log=partial(print, file=sys.stderr))
        print(f"{'adapters' if adapters else 'weights'} of step {step} in {out}")
        return 0

    return reported(work)


def refuse_files_in(out: Path) -> None:
    """Reject an output folder that is not empty: its files would be mixed with the new ones."""
    if out.is_dir() and any(out.iterdir()):
        raise OutputExistsError(
            f"--out: {out} holds files, which would be mixed with the new ones. Name another."
        )
