"""Models that a script builds, loads and saves itself, under Megatron-Bridge's names. Imports torch and megatron."""

import copy
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NamedTuple

import torch
from megatron.core import parallel_state
from megatron.core.enums import ModelType
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.module import Float16Module
from megatron.core.utils import unwrap_model

from mb_checkpoint import load_model_weights, save_model_weights
from mb_checkpoint.trainer_api import on_rank_zero
from mb_config import Provenance, to_megatron
from mb_data.trainer_api import copy_tokenizer_files
from mb_launch import pick_device, read_world
from mb_loop import TrainState
from mb_models import DataParallelSetup, GPTModelConfig, MambaModelConfig, family_of, wrap_half_precision
from mb_models.trainer_api import (
    GENERATION,
    TensorFolder,
    hf_weights,
    load_hf_weights,
    save_hf_model,
    wrap_data_parallel,
)
from mb_trainer.bridge.process_groups import initialize_model_parallel
from mb_trainer.config import (
    ConfigContainer,
    HuggingFaceSource,
    MockGPTDatasetConfig,
    RNGConfig,
    TokenizerConfig,
)
from mb_trainer.hugging_face import copy_assets
from mb_trainer.recipes.imported import imported_model
from mb_trainer.run.model import select_layers
from mb_trainer.run.preflight import resolve_and_check
from mb_trainer.run.state import GlobalState

Hook = Callable[[list[Any]], Any]


class HFWeightTuple(NamedTuple):
    """Tensor of a Hugging Face model."""

    param_name: str
    weight: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredModel:
    """Model in a folder of Hugging Face."""

    folder: Path

    @property
    def config(self) -> Any:
        """Configuration of transformers."""
        return import_module("transformers").AutoConfig.from_pretrained(self.folder)

    @property
    def state(self) -> Mapping[str, torch.Tensor]:
        """Tensors by name, each read on access."""
        return StoredTensors(self.folder)


class StoredTensors(Mapping[str, torch.Tensor]):
    """Tensors of a folder of Hugging Face."""

    def __init__(self, folder: Path) -> None:
        self._stored = TensorFolder(folder)

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self._stored.names():
            raise KeyError(name)
        return self._stored.part(name, split=None, start=0, stop=0)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._stored.names()))

    def __len__(self) -> int:
        return len(self._stored.names())


def provide_distributed_model(  # noqa: PLR0913 - the parameters of Megatron-Bridge
    section: Any,
    ddp_config: Any = None,
    model_type: ModelType | None = None,
    overlap_param_gather_with_optimizer_step: bool = False,
    fp16: bool | None = None,
    bf16: bool | None = None,
    use_megatron_fsdp: bool = False,
    use_torch_fsdp2: bool = False,
    wrap_with_ddp: bool = True,
    data_parallel_random_init: bool = False,
    use_cpu_initialization: bool | None = False,
    init_model_with_meta_device: bool | None = None,
    pre_wrap_hook: Hook | Sequence[Hook] | None = None,
    post_wrap_hook: Hook | None = None,
    mixed_precision_wrapper: Any = Float16Module,
    pg_collection: ProcessGroupCollection | None = None,
) -> list[Any]:
    """Build this rank's chunks from a section, with the weights that it names, and wrap them. Collective.

    The section is checked by all rules, and settings that this machine does not support are replaced, as in a run.
    Without open process groups they are opened, and `destroy_global_state` or the end of the process closes them.

    Args:
        section: Model section; not modified but by `fp16` and `bf16`.
        ddp_config: Data parallelism, ours or Megatron's; required unless `wrap_with_ddp` is False.
        model_type: That of language models, the only one.
        overlap_param_gather_with_optimizer_step: All gradients of a chunk are in one bucket.
        fp16: Replaces the floating-point type of the section by float16.
        bf16: Replaces it by bfloat16.
        use_megatron_fsdp: Use Megatron-FSDP.
        use_torch_fsdp2: Use torch's FSDP2.
        wrap_with_ddp: Wrap the chunks for data parallelism.
        data_parallel_random_init: Copy the weights of the first replica to the others.
        use_cpu_initialization: Build the model on the host, and leave it there.
        init_model_with_meta_device: Not supported.
        pre_wrap_hook: Called with the chunks before they are wrapped; modifies them, or returns others.
        post_wrap_hook: Called with the wrapped chunks.
        mixed_precision_wrapper: Megatron's Float16Module; None: chunks are not wrapped in half precision.
        pg_collection: Process groups; None: Megatron's own.

    Raises:
        ValueError: An option has no effect here, or `ddp_config` is missing.
        ConfigError: The section violates rules.
    """
    _require(
        wrap_with_ddp is False or ddp_config is not None,
        "ddp_config: is required with wrap_with_ddp=True. Pass a DistributedDataParallelConfig, or set that to False.",
    )
    _require(
        section.vocab_size is not None,
        "vocab_size: is not set, and there is no tokenizer that would size the embedding. Set it in the section.",
    )
    _require(
        model_type in (None, ModelType.encoder_or_decoder),
        f"model_type: {model_type} is not supported, because the class of the section decides. Leave it out.",
    )
    _require(
        not init_model_with_meta_device,
        "init_model_with_meta_device: is not supported, because the weights are initialized on their device. Leave it "
        "out, or set use_cpu_initialization=True.",
    )
    _require(
        mixed_precision_wrapper in (None, Float16Module) and (mixed_precision_wrapper or not wrap_with_ddp),
        f"mixed_precision_wrapper: {mixed_precision_wrapper} is not supported, because data parallelism expects "
        "Megatron's Float16Module. Leave it out, or pass None with wrap_with_ddp=False.",
    )
    _require(not (fp16 and bf16), "fp16: is set with bf16. Set one of them.")
    if fp16 is not None or bf16 is not None:
        section.fp16, section.bf16 = bool(fp16), bool(bf16)
        section.params_dtype = "float16" if fp16 else "bfloat16" if bf16 else "float32"
    if pg_collection is None:
        if not parallel_state.is_initialized():
            initialize_model_parallel(section, seed=RNGConfig().seed)
        pg_collection = ProcessGroupCollection.use_mpu_process_groups()
    device = torch.device("cpu") if use_cpu_initialization else pick_device(read_world(os.environ))
    config = _checked(section)
    layers = select_layers(config.model, device)
    built_section = layers.section_of(config.model)
    provider = family_of(section).provider(
        built_section, layer_spec=layers.spec, device=device, tokenizer_vocab_size=None
    )
    chunks = provider.provide_chunks(pg_collection)
    for chunk in chunks:
        chunk.section = built_section
    if isinstance(section, HuggingFaceSource) and section.hf_weights is not None:
        load_hf_weights(chunks, Path(section.hf_weights), pg_collection=pg_collection)
    hooks = [] if pre_wrap_hook is None else [pre_wrap_hook] if callable(pre_wrap_hook) else pre_wrap_hook
    for hook in hooks:
        chunks = hook(chunks) or chunks
    if wrap_with_ddp:
        ddp = copy.copy(to_megatron(ddp_config))
        ddp.use_megatron_fsdp = ddp.use_megatron_fsdp or use_megatron_fsdp
        setup = DataParallelSetup(
            config=ddp, torch_fsdp2=use_torch_fsdp2, broadcast_parameters=data_parallel_random_init
        )
        chunks = wrap_data_parallel(
            chunks,
            setup,
            groups=pg_collection,
            disable_bucketing=overlap_param_gather_with_optimizer_step,
        )
    elif mixed_precision_wrapper is not None:
        chunks = wrap_half_precision(chunks)
    return chunks if post_wrap_hook is None else post_wrap_hook(chunks) or chunks


def _require(holds: object, message: str) -> None:
    if not holds:
        raise ValueError(message)


def _checked(section: Any) -> ConfigContainer:
    """Return a configuration with a copy of the section, as a run on this machine would build it."""
    processes = torch.distributed.get_world_size()
    config = imported_model(copy.deepcopy(section), folder=Path())
    config.model.seq_length = section.seq_length  # an import lowers it
    config.dataset = MockGPTDatasetConfig(
        seq_length=section.seq_length,
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
    )
    config.tokenizer = TokenizerConfig(tokenizer_type="NullTokenizer", vocab_size=section.vocab_size - 1)
    config.checkpoint.pretrained_checkpoint = None
    config.train.micro_batch_size, config.train.global_batch_size = 1, processes
    resolve_and_check(config, world_size=processes, provenance=Provenance.of(config))
    return config


def plain_section(section: Any) -> Any:
    """Return a copy in the class that the provider's adds defaults and the source of weights to."""
    kind = MambaModelConfig if isinstance(section, MambaModelConfig) else GPTModelConfig
    return kind(**{item.name: copy.deepcopy(getattr(section, item.name)) for item in fields(kind)})


def section_of_chunks(model: Sequence[Any]) -> Any | None:
    """Return the section that the chunks were built from, wrapped or not; None: by another function."""
    return getattr(unwrap_model(model[0]), "section", None)


def load_weights(model: Sequence[Any], folder: Path) -> None:
    """Copy the weights of a Hugging Face folder into chunks, wrapped or not. Not collective."""
    load_hf_weights(unwrap_model([*model]), folder)


def load_checkpoint_weights(model: Sequence[Any], path: Path) -> None:
    """Load the weights of a checkpoint under any layout. Collective."""
    load_model_weights(path, [*model])


def save_checkpoint_weights(model: Sequence[Any], path: Path, *, section: Any, assets: Path | None) -> None:
    """Save the weights as a checkpoint that a run starts from, with the small files of `assets`. Collective."""
    config = imported_model(plain_section(section), folder=path)
    config.checkpoint.pretrained_checkpoint = str(path.resolve())
    save_model_weights(
        path,
        [*model],
        state=GlobalState(cfg=config, train_state=TrainState()),
        write_assets=None if assets is None else partial(copy_assets, assets),
    )


def is_complete(model: Sequence[Any]) -> bool:
    """Return whether every rank has the complete model."""
    groups = unwrap_model(model[0]).pg_collection
    return all(group.size() == 1 for group in (groups.tp, groups.pp, groups.ep))


def export(
    model: Sequence[Any],
    path: Path,
    *,
    section: Any,
    content: Mapping[str, Any],
    assets: Path | None,
    convert: Callable[[Path, Path], None],
) -> None:
    """Write the weights as a Hugging Face folder, on rank 0. Collective.

    Shards of several ranks are merged by way of a checkpoint next to the folder.

    Args:
        model: Chunks of this rank.
        path: New folder.
        section: Section of the model.
        content: The config.json of the family.
        assets: Folder with the tokenizer; None: it is not copied.
        convert: Writes a folder from a checkpoint.

    Raises:
        Exception: That of rank 0, on every rank.
    """
    if is_complete(model):
        on_rank_zero(partial(_write, unwrap_model(model[0]), path, section, content, assets))
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    [folder] = on_rank_zero(lambda: [mkdtemp(dir=path.parent, prefix=f".{path.name}.")])
    checkpoint = Path(folder) / "checkpoints"
    try:
        save_checkpoint_weights(model, checkpoint, section=section, assets=assets)
        on_rank_zero(lambda: convert(checkpoint, path))
    finally:
        on_rank_zero(partial(shutil.rmtree, folder, ignore_errors=True))


def _write(chunk: Any, path: Path, section: Any, content: Mapping[str, Any], assets: Path | None) -> None:
    save_hf_model(
        chunk,
        path,
        config=plain_section(section),
        model_type=content["model_type"],
        template=content,
        vocab_size=content.get("vocab_size"),
    )
    if assets is not None:
        copy_tokenizer_files(assets, path)
        if (assets / GENERATION).is_file():
            shutil.copyfile(assets / GENERATION, path / GENERATION)


def exported(model: Sequence[Any], *, section: Any, content: Mapping[str, Any]) -> Iterator[HFWeightTuple]:
    """Yield the tensors of the Hugging Face model that a complete model is.

    Raises:
        ValueError: The model is distributed over ranks.
    """
    _require(
        is_complete(model),
        "export_hf_weights: the model is distributed over ranks, whose shards are merged in files only. Call "
        "save_hf_pretrained and read its folder, or build the model with tensor, pipeline and expert parallelism of 1.",
    )
    tokens = content.get("vocab_size")
    weights = hf_weights(
        unwrap_model(model[0]),
        config=plain_section(section),
        model_type=content["model_type"],
        vocab_size=tokens,
    )
    yield from (HFWeightTuple(name, tensor) for name, tensor in weights)
