"""Megatron Core's configuration of the GPT datasets, converted from the dataset section."""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from megatron.core.datasets.gpt_dataset import GPTDatasetConfig as MegatronGPTDatasetConfig
from megatron.core.tokenizers import MegatronTokenizerBase

from mb_data.config import DataloaderConfig, GPTDatasetConfig
from mb_data.errors import DatasetError
from mb_data.megatron.blend import Blend
from mb_data.megatron.fingerprint import PairState, data_fingerprint

_PACKAGE_FIELDS = {
    "seq_length",
    "data_path",
    "skip_getting_attention_mask_from_dataset",
    "per_dataset_sequences_path",
}


def megatron_config(
    config: GPTDatasetConfig,
    samples: Sequence[int],
    *,
    pairs: Mapping[str, PairState],
    content: str | None,
    reads_data: bool,
) -> Any:
    """Return Megatron's configuration of the requested splits; `pairs` and `content` are of `data_fingerprint`."""
    index_cache = _index_cache(config, pairs, content) if reads_data else config.path_to_cache
    converted = to_megatron(config, tokenizer=config.tokenizer, path_to_cache=index_cache)
    _drop_unused_splits(converted, samples)
    return converted


def to_megatron(
    config: GPTDatasetConfig,
    *,
    tokenizer: MegatronTokenizerBase,
    path_to_cache: str | None,
    target: type = MegatronGPTDatasetConfig,
) -> Any:
    """Convert a finalized section to Megatron's configuration object.

    Args:
        config: The section.
        tokenizer: Megatron's tokenizer.
        path_to_cache: Folder for the sample indices.
        target: Megatron's configuration class.

    Raises:
        DatasetError: A field is set that the installed Megatron Core does not have.
    """
    megatron_fields = {field.name for field in fields(target) if field.init}
    not_passed = {field.name for field in fields(DataloaderConfig)} | _PACKAGE_FIELDS
    values = {}
    for field in fields(GPTDatasetConfig):
        if field.name in not_passed or not field.init:
            continue
        value = getattr(config, field.name)
        if field.name in megatron_fields:
            values[field.name] = value
        elif field.default is MISSING or value != field.default:
            raise DatasetError(
                f"dataset.{field.name}: is {value!r}, but the installed Megatron Core has no such setting, and would "
                "ignore it. Leave it at its default, or install a version of Megatron Core that has it."
            )
    blend = config.blend
    values |= {
        "sequence_length": config.seq_length,
        "tokenizer": tokenizer,
        "path_to_cache": path_to_cache,
        "blend": None if blend is None else _drop_single_weight(blend),
        "blend_per_split": config.blend_per_split
        and [None if blend is None else _drop_single_weight(blend) for blend in config.blend_per_split],
        "create_attention_mask": config.create_attention_mask
        and not config.skip_getting_attention_mask_from_dataset,
    }
    return target(**values)


def _index_cache(config: GPTDatasetConfig, pairs: Mapping[str, PairState], content: str | None) -> str | None:
    """Return the folder for the sample indices of the data, and create it; None for generated data."""
    prefixes = prefixes_of(config)
    if not prefixes:
        return None
    # Megatron's name of an index does not include these two settings, although the index depends on them.
    settings = (config.add_extra_token_to_sequence, config.drop_last_partial_validation_sequence)
    base = Path(config.path_to_cache) if config.path_to_cache else Path(prefixes[0]).parent / "index-cache"
    folder = base / data_fingerprint(prefixes, settings=settings, states=pairs, content=content)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PermissionError(
            f"dataset.path_to_cache: cannot create {folder} ({error}); the sample indices are cached there. "
            "Set it to a folder that every rank can write."
        ) from error
    return str(folder)


def drop_validation_weights(config: GPTDatasetConfig, *, only_validation: bool) -> None:
    """Remove the weights of the validation blend for `full_validation`, which reads each sequence once."""
    if config.blend_per_split is not None:
        train, valid, test = config.blend_per_split
        config.blend_per_split = [train, valid and (valid[0], None), test]
    elif config.blend is not None and _drop_single_weight(config.blend)[1] is not None:
        if not only_validation:
            raise DatasetError(
                f"dataset.full_validation: the blend of {len(config.blend[0])} prefixes has weights, which apply to "
                "training but not to a full validation set. Build the validation set separately, or set "
                "blend_per_split."
            )
        config.blend = (config.blend[0], None)


def _drop_single_weight(blend: Blend) -> Blend:
    """Drop the weight of a single prefix, because Megatron would wrap the dataset in a blend of one."""
    prefixes, weights = blend
    return list(prefixes), None if weights is None or len(prefixes) == 1 else list(weights)


def _drop_unused_splits(config: Any, samples: Sequence[int]) -> None:
    if config.blend_per_split is not None:
        config.blend_per_split = [
            blend if count else None for blend, count in zip(config.blend_per_split, samples, strict=True)
        ]
    else:
        config.split_matrix = [
            part if count else None for part, count in zip(config.split_matrix, samples, strict=True)
        ]


def blends_of(config: Any) -> list[Blend]:
    """Return all blends of a section, or of Megatron's configuration."""
    return [blend for blend in (config.blend, *(config.blend_per_split or ())) if blend is not None]


def prefixes_of(config: Any) -> list[str]:
    """Return the prefixes of all files of the blends, in order."""
    return [prefix for blend in blends_of(config) for prefix in blend[0]]
