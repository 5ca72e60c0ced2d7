"""Models on a single rank for conversion from and to the Hugging Face format.

During a conversion the parameters are memory-mapped from files, so that they need not fit into memory.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from megatron.core.process_groups_config import ProcessGroupCollection

from mb_models.config import GPTModelConfig
from mb_models.errors import HuggingFaceError
from mb_models.families import family_of
from mb_models.gpt.transformer import DTYPES
from mb_models.hf.config_json import read_config, section_of, with_padded_vocabulary
from mb_models.hf.family import Section
from mb_models.hf.load import named_weights
from mb_models.hf.safetensors_files import TensorFolder
from mb_models.hybrid.config import MambaModelConfig
from mb_models.mimo.config import MimoModelConfig
from mb_models.training.chunks import StackSpec

NUMBER = re.compile(r"\.\d+(?=\.)")
"""Index of a layer or an expert inside a parameter's name."""


def section_of_folder(folder: Path) -> Section:
    """Return the model section of a folder in the Hugging Face format, with the floating-point type of its weights.

    The rows of the embedding are a multiple of 128; the additional ones are padding.

    Raises:
        HuggingFaceError: the folder is incomplete, or Megatron would compute a different result.
    """
    content = read_config(folder)
    with TensorFolder(folder) as stored:
        dtype, total = stored.dtype(), stored.total_bytes
    section = section_of(content, dtype=dtype_name(dtype))
    if (section.vocab_size or 1) * section.hidden_size > total:  # before the parameters are made
        raise HuggingFaceError(
            f"{folder}: config.json describes an embedding of {section.vocab_size} x {section.hidden_size}, and the "
            f"files have {total} bytes. Download the folder again."
        )
    return with_padded_vocabulary(section)


def dtype_name(dtype: torch.dtype) -> Any:
    """Return the configuration name of a floating-point type."""
    for name, torch_dtype in DTYPES.items():
        if torch_dtype == dtype:
            return name
    raise HuggingFaceError(
        f"the weights are {dtype}, and only {', '.join(DTYPES)} can be converted. Save the model in one of them."
    )


def weights_dtype(section: Section) -> torch.dtype:
    """Return the floating-point type of exported weights: that in which the model is trained."""
    if section.bf16 or section.fp16:
        return torch.bfloat16 if section.bf16 else torch.float16
    return torch.float32


def require_convertible(section: object, *, source: Path) -> Section:
    """Return the section if its family has models in the Hugging Face format.

    Raises:
        HuggingFaceError: the section, which was read from `source`, belongs to another family.
    """
    # the section of a GPT that reads images is a GPT's with an encoder
    if not isinstance(section, GPTModelConfig | MambaModelConfig) or isinstance(section, MimoModelConfig):
        raise HuggingFaceError(
            f"{source}: is a {type(section).__name__}, and only GPTs and hybrids can be converted. Export one."
        )
    return section


@contextmanager
def memory_mapped_model(
    section: Section,
    *,
    groups: ProcessGroupCollection,
    layer_spec: StackSpec,
    folder: Path,
) -> Iterator[Any]:
    """Build a complete model on the host with parameters of 0 in files below `folder`; remove the files at the end.

    Args:
        section: model section without parallelism (`mb_models.training.unsharded.unshard`), with a vocabulary size; not
            modified.
        groups: process groups of one rank each.
        layer_spec: layers for the CPU.
        folder: folder on a disk with space for the parameters; created if it does not exist.
    """
    local = replace(section, transformer_impl="local", perform_initialization=False)
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder) as pages:
        provider = family_of(section).provider(
            local,
            layer_spec=layer_spec,
            device=torch.device("cpu"),
            tokenizer_vocab_size=None,
        )
        [chunk] = provider.provide_chunks(groups)
        for value in chunk.parameters():  # not buffers: the biases of routers are float32 in every model
            value.data = value.data.to(weights_dtype(section))
        memory_map_parameters([chunk], Path(pages))
        yield chunk


def load_by_kind(
    chunk: Any,
    load: Callable[[Callable[[str], bool]], object],
    *,
    is_needed: Callable[[str], bool] = lambda _name: True,
) -> None:
    """Load a checkpoint into a model on one rank, one kind of parameter at a time.

    Megatron's checkpoints stack the layers of a kind, and loading may allocate the complete stack. One kind at a time
    limits that memory.

    Args:
        chunk: the model.
        load: called once per kind with a predicate of parameter names; loads the selected parameters.
        is_needed: returns whether a parameter is loaded.
    """
    for kind in dict.fromkeys(_kind(name) for name, _ in named_weights(chunk) if is_needed(name)):
        load(_is_of(kind, is_needed))


def _kind(name: str) -> str:
    return NUMBER.sub(".*", name)


def _is_of(kind: str, is_needed: Callable[[str], bool]) -> Callable[[str], bool]:
    return lambda name: _kind(name) == kind and is_needed(name)


@torch.no_grad()
def memory_map_parameters(modules: Iterable[torch.nn.Module], folder: Path) -> None:
    """Replace the parameters of modules on the host by zeros in memory-mapped files; a shared parameter stays shared.

    The files must outlive the modules. They occupy as much disk space as the parameters have bytes.
    """
    for module_number, module in enumerate(modules):
        for number, parameter in enumerate(module.parameters()):
            path = folder / f"{module_number}-{number}.weights"
            flat = torch.from_file(str(path), shared=True, size=parameter.numel(), dtype=parameter.dtype)
            parameter.data = flat.view(parameter.shape)
