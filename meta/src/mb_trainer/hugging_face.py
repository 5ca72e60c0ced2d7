"""Conversion of checkpoints from and to Hugging Face folders, in one process. Imports torch and megatron.

During a conversion the parameters are memory-mapped from files next to the result, so that they need not fit into
memory.
"""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import torch
from megatron.core.process_groups_config import ProcessGroupCollection

from mb_checkpoint import (
    CheckpointConfig,
    CheckpointLoadContext,
    CheckpointSaveContext,
    SelectedCheckpoint,
    load_checkpoint,
    save_checkpoint,
)
from mb_data import load_saved_tokenizer
from mb_data.tokenizer_loading import TOKENIZER_FILES
from mb_launch import World
from mb_loop import TrainState
from mb_models import GPTModelConfig
from mb_models.hf.config_json import config_of, read_config, section_of
from mb_models.hf.errors import HuggingFaceError
from mb_models.hf.load import load_hf_weights
from mb_models.hf.memory_map import memory_map_parameters
from mb_models.hf.safetensors_files import TensorFolder
from mb_models.hf.save import save_hf_model
from mb_models.peft.hugging_face import save_adapters
from mb_models.transformer import DTYPES
from mb_trainer.adapters import load_adapted, load_merged
from mb_trainer.config import TARGETS, ConfigContainer, TextCorpusConfig, TokenizerConfig
from mb_trainer.families import family_of
from mb_trainer.groups import process_groups, seed_everything
from mb_trainer.one_process import single_process
from mb_trainer.recipes import gpt_tiny
from mb_trainer.sampling import newest_of
from mb_trainer.state import GlobalState

Result = TypeVar("Result")
CPU = torch.device("cpu")
NUMBER = re.compile(r"\.\d+(?=\.)")
"""Index of a layer or an expert inside a parameter's name."""
LONGEST = 2048
"""Sequence length after an import, unless the model's maximum is lower; a default for the user to raise."""
PRECISION = {torch.bfloat16: "bf16_mixed", torch.float16: "fp16_mixed"}
"""Mixed-precision settings by the type of the weights."""


def import_folder(folder: Path, out: Path) -> int:
    """Write `out/checkpoints` and `out/run_config.yaml` from a folder of Llama, Qwen or Mixtral.

    Return the number of parameters. The checkpoint can be loaded under any parallelism. run_config.yaml is a
    complete configuration that starts from it.

    Raises:
        mb_models.hf.errors.HuggingFaceError: the folder is incomplete, or Megatron would compute a different result.
    """
    content = read_config(folder)
    with TensorFolder(folder) as stored:
        dtype = stored.dtype()
    section = section_of(content, dtype=dtype_name(dtype))
    out.mkdir(parents=True, exist_ok=True)
    copy_tokenizer(folder, out)
    config = configuration(section, dtype=dtype, out=out)

    def write_tokenizer(target: Path) -> None:
        copy_tokenizer(folder, target)

    def convert(chunk: Any, groups: ProcessGroupCollection) -> int:
        load_hf_weights([chunk], folder, pg_collection=groups)
        save_checkpoint(
            CheckpointSaveContext(
                state=GlobalState(cfg=config, train_state=TrainState()),
                model=[chunk],
                optimizer=None,
                opt_param_scheduler=None,
                num_floating_point_operations_so_far=0,
                pg_collection=groups,
            ),
            CheckpointConfig(save=str(out / "checkpoints"), save_optim=False, save_rng=False),
            write_assets=write_tokenizer,
        )
        return sum(parameter.numel() for parameter in chunk.parameters())

    parameters = with_model(config, convert, dtype=dtype, pages=out, vocab_size=None)
    # an explicit null would count as set by the user
    config.to_yaml(out / "run_config.yaml", defaults=False)
    return parameters


def dtype_name(dtype: torch.dtype) -> Any:
    """Return the configuration name of a floating-point type."""
    return next(name for name, known in DTYPES.items() if known == dtype)


def configuration(section: GPTModelConfig, *, dtype: torch.dtype, out: Path) -> ConfigContainer:
    """Return a configuration that fine-tunes the imported model on the data of the recipe gpt_tiny."""
    config = gpt_tiny()
    section.seq_length = min(section.seq_length, LONGEST)
    config.model = section
    config.mixed_precision = PRECISION.get(dtype)
    config.optimizer.lr, config.optimizer.min_lr = 1e-5, 1e-6
    tokenizer = out / TOKENIZER_FILES[0]
    if tokenizer.is_file():
        config.tokenizer = TokenizerConfig(
            tokenizer_type="HuggingFaceTokenizer", tokenizer_model=str(tokenizer.resolve())
        )
    config.dataset = TextCorpusConfig(
        seq_length=section.seq_length, vocab_size=4096, dataloader_type="single", num_workers=0
    )
    config.checkpoint.pretrained_checkpoint = str((out / "checkpoints").resolve())
    return config


def export_run(run: Path, out: Path, *, say: Callable[[str], object], adapters: bool = False) -> int:
    """Write the newest intact checkpoint of a run as a transformers folder; return its step.

    `say` receives a message for each damaged checkpoint that was skipped.

    Adapters are merged; with `adapters`, only the adapters are written, in the format of peft. Padding rows of the
    vocabulary are kept. The tokenizer is copied.

    Raises:
        NoCheckpointError: there is none.
        mb_checkpoint.CheckpointNotFoundError, mb_checkpoint.IncompleteCheckpointError: all are damaged.
        mb_models.hf.errors.HuggingFaceError: no supported transformers model computes the same result.
        mb_models.peft.config.PeftError: adapters are requested of a run that has none.
    """
    selection = newest_of(run, purpose="export", say=say)
    config = single_process(ConfigContainer.from_yaml(selection.path / "run_config.yaml", TARGETS))
    size = None
    if config.model.vocab_size is None:
        size = load_saved_tokenizer(selection.path, config.tokenizer).vocab_size
    section = config.model
    if not isinstance(section, GPTModelConfig):
        raise HuggingFaceError(
            f"{run}: is a {type(section).__name__}, because Llama, Qwen and Mixtral are GPTs. Export a GPT."
        )
    dtype = torch.float32
    if section.bf16 or section.fp16:
        dtype = torch.bfloat16 if section.bf16 else torch.float16

    def convert(chunk: Any, groups: ProcessGroupCollection) -> None:
        if adapters:
            rows = chunk.embedding.word_embeddings.weight.shape[0]
            config_of(section, vocab_size=rows, dtype=dtype_name(dtype))  # rejects unsupported features
            kind = load_adapted(selection, [chunk], config, groups)
            save_adapters(chunk, out, section=kind, config=section, pg_collection=groups)
            return
        if config.peft is None:
            read_weights(selection, chunk, config, groups)
        else:
            load_merged(selection, [chunk], config, groups)
        save_hf_model(chunk, out, config=section, pg_collection=groups)

    with_model(config, convert, dtype=dtype, pages=out.parent, vocab_size=size)
    copy_tokenizer(selection.path, out)
    return selection.step or 0


def copy_tokenizer(source: Path, target: Path) -> None:
    """Copy the tokenizer files that exist."""
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)


def read_weights(
    selection: SelectedCheckpoint, chunk: Any, config: ConfigContainer, groups: ProcessGroupCollection
) -> None:
    """Load an intact checkpoint into an unsharded model, one kind of parameter at a time.

    Megatron's checkpoints stack the layers of a kind, and loading allocates the complete stack. One kind at a time
    limits that memory.
    """
    state = GlobalState(cfg=config, train_state=TrainState())
    kinds = dict.fromkeys(NUMBER.sub(".*", name) for name, _ in chunk.named_parameters())
    for kind in kinds:
        load_checkpoint(
            CheckpointLoadContext(
                state=state,
                model=[chunk],
                optimizer=None,
                opt_param_scheduler=None,
                adapter_key_filter=is_of(kind),
                pg_collection=groups,
            ),
            CheckpointConfig(load=str(selection.path), finetune=True, verify_integrity=False),
        )


def is_of(kind: str) -> Callable[[str], bool]:
    """Return a predicate of the parameters of a kind."""
    return lambda name: NUMBER.sub(".*", name) == kind


def with_model(
    config: ConfigContainer,
    use: Callable[[Any, ProcessGroupCollection], Result],
    *,
    dtype: torch.dtype,
    pages: Path,
    vocab_size: int | None,
) -> Result:
    """Build the unsharded model on the host, its parameters in files below `pages`; use it, and remove the files."""
    family = family_of(config.model)
    implementation, config.model.transformer_impl = config.model.transformer_impl, "local"
    draws, config.model.perform_initialization = config.model.perform_initialization, False
    pages.mkdir(parents=True, exist_ok=True)
    with process_groups(World(), config, device=CPU) as groups, TemporaryDirectory(dir=pages) as folder:
        seed_everything(config, groups)
        provider = family.provider(
            config.model, layer_spec=family.host, device=CPU, tokenizer_vocab_size=vocab_size
        )
        [chunk] = provider.provide_chunks(groups)
        chunk.to(dtype)
        memory_map_parameters([chunk], Path(folder))
        config.model.transformer_impl, config.model.perform_initialization = implementation, draws
        return use(chunk, groups)
