"""Small functions that scripts for Megatron-Bridge import, under its names. No torch at import."""

import os
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.table import Table

import mb_trainer
from mb_launch import WorldError, read_world, set_unset_variables
from mb_loop import TrainOutcome
from mb_metrics import configure_logging, model_flops_per_token
from mb_trainer.config import ConfigContainer, LoggerConfig


def pretrain(
    config: ConfigContainer,
    forward_step_func: Callable[..., Any] | None = None,
    callbacks: Sequence[object] = (),
    **options: Any,
) -> TrainOutcome:
    """Call `mb_trainer.pretrain`, which documents arguments, result and errors; the run has the name of the script."""
    return mb_trainer.pretrain(config, forward_step_func, callbacks, **{"name": _script(), **options})


def finetune(
    config: ConfigContainer,
    forward_step_func: Callable[..., Any] | None = None,
    callbacks: Sequence[object] = (),
    **options: Any,
) -> TrainOutcome:
    """Call `mb_trainer.finetune`, which documents arguments, result and errors; the run has the name of the script."""
    return mb_trainer.finetune(config, forward_step_func, callbacks, **{"name": _script(), **options})


def _script() -> str:
    """Return the name of the script that this process runs, so that two scripts of a folder have two run folders."""
    name = Path(sys.argv[0]).stem
    return "run" if name in ("", "-c", "__main__") else name


def is_safe_repo(hf_path: str, trust_remote_code: bool | None) -> bool:
    """Return `trust_remote_code`; None: False, because no code of a model is run."""
    del hf_path
    return bool(trust_remote_code)


def get_rank_safe() -> int:
    """Return the rank of this process: that of the open process group, or the one that its launcher has set."""
    group = _open_group()
    return read_world(os.environ).rank if group is None else group.get_rank()


def get_world_size_safe() -> int:
    """Return the number of processes: that of the open process group, or the one that their launcher has set."""
    group = _open_group()
    return read_world(os.environ).world_size if group is None else group.get_world_size()


def get_local_rank_preinit() -> int:
    """Return the rank of this process on its machine: LOCAL_RANK, also without RANK, or that of mpirun or srun.

    Raises:
        mb_launch.WorldError: LOCAL_RANK is not a number, or `read_world` raises it.
    """
    text = os.environ.get("LOCAL_RANK")
    if text is None:
        return read_world(os.environ).local_rank
    if not text.isdecimal():
        raise WorldError(
            f"LOCAL_RANK: must be a whole number, is {text!r}. It selects the device of this process. Set it as "
            "torchrun does, or unset it."
        )
    return int(text)


def _open_group() -> Any:
    """Return torch.distributed if the process group is open; a process without torch has none."""
    distributed = sys.modules.get("torch.distributed")
    opened = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return distributed if opened else None


def get_last_rank() -> int:
    """Return the rank of the last process."""
    return get_world_size_safe() - 1


def print_rank_0(message: str) -> None:
    """Print on rank 0."""
    if get_rank_safe() == 0:
        print(message, flush=True)


def print_rank_last(message: str) -> None:
    """Print on the last rank."""
    if get_rank_safe() == get_last_rank():
        print(message, flush=True)


def resolve_path(path: str | Path) -> Path:
    """Return an absolute path without links and ~."""
    return Path(path).expanduser().resolve()


def resolve_slurm_master_addr() -> str | None:
    """Return the address of the first task of a job step of Slurm; None outside of one."""
    address = _slurm_address()
    return None if address is None else address.rpartition(":")[0]


def resolve_slurm_master_port() -> int | None:
    """Return the port at which the tasks of a job step of Slurm meet; None outside of one."""
    address = _slurm_address()
    return None if address is None else int(address.rpartition(":")[2])


def _slurm_address() -> str | None:
    return read_world(os.environ).address


def disable_mtp_for_inference(model: Any) -> None:
    """Compute only the next token's logits in a chunk, wrapped or not, with layers that predict further ones."""
    unwrap_model = import_module("megatron.core.utils").unwrap_model  # imports torch
    chunk = unwrap_model(model)
    chunk.config.mtp_num_layers, chunk.mtp_process = None, False


def torchrun_main(function: Callable[..., Any]) -> Callable[..., Any]:
    """Report an exception of a script's main function to torchrun, and close the process group at its end."""
    record = import_module("torch.distributed.elastic.multiprocessing.errors").record
    distributed = import_module("torch.distributed")

    @wraps(function)
    def main(*arguments: Any, **options: Any) -> Any:
        result = record(function)(*arguments, **options)
        if distributed.is_initialized():
            distributed.destroy_process_group()
        return result

    return main


def weights_verification_table(bridge: Any, megatron_model: Any) -> Table:
    """Return a table of the tensors of a complete model, and whether they are those of the Hugging Face model."""
    table = Table(
        "Weight Name",
        "Shape",
        "DType",
        "Device",
        "Matches Original",
        title="Hugging Face Weights Verification",
    )
    for name, weight in bridge.export_hf_weights(megatron_model):
        original = bridge.hf_pretrained.state[name].to(weight)
        matches = "yes" if weight.shape == original.shape and bool((weight == original).all()) else "no"
        table.add_row(name, str(tuple(weight.shape)), str(weight.dtype), str(weight.device), matches)
    return table


def apply_environment_variables(cfg: ConfigContainer) -> None:
    """Set the variables of `env_vars` that are not set in the environment of this process."""
    set_unset_variables(cfg.env_vars, log=print_rank_0)


def setup_logging(
    logging_level: int | None = None,
    filter_warning: bool = True,
    modules_to_filter: Sequence[str] | None = None,
    set_level_for_all_loggers: bool = False,
) -> None:
    """Set levels and filters of Python's logging, as section `logger` does in a run.

    Args:
        logging_level: Level; None: that of MEGATRON_LOGGING_LEVEL, or INFO.
        filter_warning: Drop warnings of other packages.
        modules_to_filter: Loggers whose records are dropped.
        set_level_for_all_loggers: Set the level on all existing loggers.
    """
    configure_logging(
        LoggerConfig(
            logging_level=logging_level,
            filter_warnings=filter_warning,
            modules_to_filter=None if modules_to_filter is None else [*modules_to_filter],
            set_level_for_all_loggers=set_level_for_all_loggers,
        )
    )


def num_floating_point_operations(
    cfg: ConfigContainer,
    batch_size: int = 1,
    seqlen_sum: int | None = None,
    seqlen_squared_sum: int | None = None,
) -> float:
    """Return the model FLOPs of a batch, forward and backward; errors as `mb_metrics.model_flops_per_token`.

    As in Megatron, attention counts half of the score matrix.

    Args:
        cfg: Configuration of which the section `model` has the sizes.
        batch_size: Sequences of `model.seq_length` tokens.
        seqlen_sum: Tokens of the batch, if sequences have different lengths.
        seqlen_squared_sum: Sum of the squared lengths; None: all sequences have `model.seq_length` tokens.
    """
    length = cfg.model.seq_length
    tokens = batch_size * length if seqlen_sum is None else seqlen_sum
    lengths = length if seqlen_squared_sum is None else seqlen_squared_sum / tokens
    return tokens * model_flops_per_token(cfg.model, seq_length=lengths).total


def is_safe_public_http_url(url: str) -> tuple[bool, str]:
    """Return False and the reason: nothing is loaded from the network."""
    return False, f"{url}: images are not loaded from addresses here; name a file"


def safe_url_open(url: str) -> Any:
    """Reject an address.

    Raises:
        NotImplementedError: Always.
    """
    raise NotImplementedError(is_safe_public_http_url(url)[1])
