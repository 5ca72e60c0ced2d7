"""Weights of Hugging Face folders in this package's layout: converted once, and cached. Standard library only.

The cache is `$MB_CACHE_DIR/weights`, or else `~/.cache/mb-trainer/weights`. It has one folder for each Hugging Face
folder and its content: another config.json, or files of other names, sizes or times, are another folder.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from mb_checkpoint.errors import WeightConversionError
from mb_checkpoint.formats.layout import RUN_CHECKPOINTS, is_convertible, why_not_a_checkpoint

LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables of one process of a run, which a program that it starts must not see."""
_LAUNCHER_PREFIXES = ("TORCHELASTIC_", "SLURM_", "GROUP_", "ROLE_", "MB_ERROR_", "MB_VERIFY_")


def converted_directory(folder: Path) -> Path:
    """Return the folder of the checkpoint that a Hugging Face folder is converted to; it need not exist.

    Raises:
        OSError: The folder cannot be read.
    """
    cache = Path(os.environ.get("MB_CACHE_DIR") or "~/.cache/mb-trainer").expanduser()
    content = hashlib.sha256((folder / "config.json").read_bytes())
    for file in sorted(folder.glob("*.safetensors")):
        facts = file.stat()
        content.update(f"{file.name}\0{facts.st_size}\0{facts.st_mtime_ns}\0".encode())
    return cache / "weights" / f"{folder.resolve().name}-{content.hexdigest()[:16]}" / RUN_CHECKPOINTS


def source_of_weights(named: str) -> str:
    """Return the folder to read weights from: for a Hugging Face folder its conversion, else the folder itself."""
    folder = Path(named)
    return str(converted_directory(folder)) if is_convertible(folder) else named


def convert_once(
    named: str | None,
    *,
    command: Sequence[str],
    log: Callable[[str], object],
) -> None:
    """Convert the Hugging Face folder that a configuration names, unless it is converted or is no such folder.

    Every process calls it. One process of a machine converts, in a child process without a GPU and without the
    variables of a launcher; the others wait. An interrupted conversion is started again. Not collective.

    Args:
        named: Value of `checkpoint.pretrained_checkpoint`.
        command: Program that converts, called with the folder, `--out` and the folder that receives `checkpoints`.
        log: Receives a line before the conversion.

    Raises:
        WeightConversionError: The program failed; the message is the end of its output.
        OSError: The cache cannot be written.
    """
    if named is None or not is_convertible(Path(named)):
        return
    target = converted_directory(Path(named))
    if why_not_a_checkpoint(target) is None:
        return
    folder = target.parent
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if why_not_a_checkpoint(target) is None:
            return
        shutil.rmtree(folder, ignore_errors=True)  # of an interrupted conversion
        log(f"converting {named} into Megatron's layout, once; it is kept in {folder}")
        ended = subprocess.run(
            [*command, named, "--out", str(folder)],
            env=environment_of_child(os.environ),
            capture_output=True,
            text=True,
            check=False,
        )
        if ended.returncode:
            reason = ended.stderr.strip() or f"exit code {ended.returncode}"
            raise WeightConversionError(
                f"checkpoint.pretrained_checkpoint: {named} could not be converted. {reason.removeprefix('error: ')}"
            )


def environment_of_child(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the variables of a launcher, and without GPUs."""
    inherited = {
        name: value
        for name, value in environment.items()
        if name not in LAUNCHER_VARIABLES and not name.startswith(_LAUNCHER_PREFIXES)
    }
    return {**inherited, "CUDA_VISIBLE_DEVICES": ""}
