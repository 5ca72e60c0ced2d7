"""Models and tokenizers of checkpoints, under the names of Megatron-Bridge's model_load_save. Imports torch."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from megatron.core.utils import unwrap_model

from mb_checkpoint.trainer_api import require_newest_intact
from mb_config.trainer_api import to_dtype
from mb_data import Tokenizer
from mb_data import load_tokenizer as load_tokenizer_of
from mb_models import MambaModelConfig
from mb_trainer.bridge.distributed_model import (
    is_complete,
    load_checkpoint_weights,
    provide_distributed_model,
    save_checkpoint_weights,
    section_of_chunks,
)
from mb_trainer.bridge.process_groups import temporary_distributed_context
from mb_trainer.bridge.providers import provider_of
from mb_trainer.bridge.scripts import print_rank_0
from mb_trainer.run.saved_run import SavedRun

PURPOSE = "load the model of"
KINDS = {"gpt": False, "hybrid": True, "mamba": True}
"""Type of a model -> whether its section is that of a hybrid."""


DTYPES = {"fp32": "float32", "32": "float32", "32-true": "float32", "fp16": "float16", "16": "float16"}
DTYPES |= {"16-mixed": "float16", "bf16": "bfloat16", "bf16-mixed": "bfloat16"}
"""Short name of a floating-point type -> that of torch."""


def load_model_config(checkpoint_path: str) -> tuple[Any, None]:
    """Return the model section of a checkpoint, as a provider without parallelism, and None: it needs no arguments.

    Args:
        checkpoint_path: A checkpoint, a folder of checkpoints or a run folder, of which the newest is read.

    Raises:
        mb_checkpoint.CheckpointNotFoundError: There is none.
    """
    return provider_of(_saved(checkpoint_path).config.model), None


def load_tokenizer(checkpoint_path: str, **kwargs: Any) -> Tokenizer:
    """Return the tokenizer that is saved with a checkpoint; with fields of its section that of the changed section.

    Args:
        checkpoint_path: See `load_model_config`.
        kwargs: Fields of the section `tokenizer`, such as `tokenizer_model` of files that were moved.

    Raises:
        AttributeError: The section has no such field.
    """
    saved = _saved(checkpoint_path)
    if not kwargs:
        return saved.tokenizer()
    section = saved.config.tokenizer
    for name, value in kwargs.items():
        setattr(section, name, value)
    return load_tokenizer_of(section)


def _saved(checkpoint_path: str) -> SavedRun:
    return SavedRun.find(Path(checkpoint_path), purpose=PURPOSE, log=print_rank_0)


def build_and_load_model(
    checkpoint_path: str,
    model_cfg: Any,
    model_type: str | None = None,
    megatron_args: Any = None,
    return_state_dict: bool = False,
    use_cpu_init: bool = False,
    skip_temp_dist_context: bool | None = None,
) -> Any:
    """Return this rank's chunks of a section, with the weights of a checkpoint. Collective.

    Args:
        checkpoint_path: See `load_model_config`.
        model_cfg: Model section of any layout.
        model_type: "gpt", "hybrid" or "mamba", if it is to be checked.
        megatron_args: Must be None.
        return_state_dict: Return the tensors of the complete model by name.
        use_cpu_init: Build the model on the host, and leave it there.
        skip_temp_dist_context: Use open process groups; None: if there are any. Otherwise the model is built in groups
            of a single process, which are closed on return.

    Raises:
        ValueError: `megatron_args` is set, the section is that of another model, or tensors of a distributed model are
            wanted.
    """
    if megatron_args is not None:
        raise ValueError(
            "megatron_args: is not supported, because the section describes the model. Leave it out, and convert "
            "arguments with `mb config import-args`."
        )
    if model_type is not None and KINDS.get(model_type) != isinstance(model_cfg, MambaModelConfig):
        raise ValueError(
            f"model_type: {model_type!r} is not that of {type(model_cfg).__name__}. Leave it out, because the class "
            "of the section decides."
        )
    use_open = (
        torch.distributed.is_initialized() if skip_temp_dist_context is None else skip_temp_dist_context
    )
    with nullcontext() if use_open else temporary_distributed_context("gloo" if use_cpu_init else "nccl"):
        model = provide_distributed_model(model_cfg, wrap_with_ddp=False, use_cpu_initialization=use_cpu_init)
        checkpoint = require_newest_intact(
            Path(checkpoint_path), purpose=PURPOSE, contents=False, log=print_rank_0
        )
        load_checkpoint_weights(model, checkpoint.path)
        if not return_state_dict:
            return model
        if not is_complete(model):
            raise ValueError(
                "return_state_dict: the model is distributed over ranks, which have parts of the tensors. Set the "
                "parallelism of the section to 1."
            )
        return unwrap_model(model[0]).state_dict()


def load_megatron_model(
    checkpoint_path: str,
    model_type: str | None = None,
    return_state_dict: bool = False,
    use_cpu_init: bool = False,
    skip_temp_dist_context: bool | None = None,
    mp_overrides: Mapping[str, Any] | None = None,
) -> Any:
    """Return this rank's chunks of the model of a checkpoint. Collective. Errors as `build_and_load_model`.

    Args:
        checkpoint_path: See `load_model_config`.
        model_type: See `build_and_load_model`, like the arguments that are not described here.
        return_state_dict: See `build_and_load_model`.
        use_cpu_init: See `build_and_load_model`.
        skip_temp_dist_context: See `build_and_load_model`.
        mp_overrides: Fields of the section, such as `tensor_model_parallel_size`; without them all sizes are 1.
    """
    section, _ = load_model_config(checkpoint_path)
    for name, value in (mp_overrides or {}).items():
        if value is not None:
            setattr(section, name, value)
    return build_and_load_model(
        checkpoint_path,
        section,
        model_type,
        return_state_dict=return_state_dict,
        use_cpu_init=use_cpu_init,
        skip_temp_dist_context=skip_temp_dist_context,
    )


def save_megatron_model(
    model: Sequence[Any],
    path: str | Path,
    ckpt_format: str = "torch_dist",
    hf_tokenizer_path: str | Path | None = None,
    low_memory_save: bool = False,
    hf_tokenizer_kwargs: Mapping[str, Any] | None = None,
) -> None:
    """Save the weights as a checkpoint that a run starts from. Collective.

    Args:
        model: Chunks that were built from a section, wrapped or not.
        path: Folder of the checkpoint, for `checkpoint.pretrained_checkpoint`.
        ckpt_format: "torch_dist".
        hf_tokenizer_path: Folder with the tokenizer's files, which are copied; None: without a tokenizer.
        low_memory_save: Must be False.
        hf_tokenizer_kwargs: Must be empty.

    Raises:
        ValueError: An argument has another value than those that are supported, or the chunks have no section.
    """
    section = section_of_chunks(model)
    reasons = {
        "model": (
            section is None,
            "was not built from a section, which the checkpoint describes the model by",
        ),
        "ckpt_format": (
            ckpt_format != "torch_dist",
            f"{ckpt_format} is not the format of weights. Use torch_dist",
        ),
        "low_memory_save": (low_memory_save, "is not supported, because the model is kept. Leave it out"),
        "hf_tokenizer_kwargs": (
            bool(hf_tokenizer_kwargs),
            "has no effect, because files are copied. Leave it out",
        ),
    }
    for name, (is_wrong, reason) in reasons.items():
        if is_wrong:
            raise ValueError(f"save_megatron_model: {name}: {reason}.")
    assets = None if hf_tokenizer_path is None else Path(hf_tokenizer_path)
    save_checkpoint_weights(model, Path(path), section=section, assets=assets)


def torch_dtype_from_mcore_config(config: Any) -> torch.dtype:
    """Return the floating-point type of a section or of Megatron's configuration: by `bf16`, `fp16`, else float32."""
    return torch.bfloat16 if config.bf16 else torch.float16 if config.fp16 else torch.float32


def dtype_from_hf(config: Any) -> torch.dtype:
    """Return the floating-point type of a configuration of transformers."""
    dtype: torch.dtype | str = config.torch_dtype
    return dtype if isinstance(dtype, torch.dtype) else str_to_dtype(dtype)


def str_to_dtype(name: str) -> torch.dtype:
    """Return the floating-point type of torch with a name such as "bf16", "bfloat16" or "torch.bfloat16".

    Raises:
        ValueError: No section accepts the type.
    """
    plain = name.removeprefix("torch.")
    dtype: torch.dtype = to_dtype(DTYPES.get(plain, plain))
    return dtype
