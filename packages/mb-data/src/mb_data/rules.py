"""Rules for the sections of this package, as pure functions of values. Standard library only.

A rule applies if its sections exist and have its first field. For any other field that a section lacks, the test may
receive None. Custom dataset providers have none or only some of the GPT fields, so a test accepts None unless it is the
value that the rule rejects.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mb_data.errors import DataError
from mb_data.fim import rules as fim_rules
from mb_data.finetuning import packing_rules
from mb_data.finetuning import rules as finetuning_rules
from mb_data.loading import validation_rules
from mb_data.megatron.blend import SPLITS, blend_from_path, find_bad_weights, split_matrix
from mb_data.t5 import rules as t5_rules
from mb_data.tokenizers import rules as tokenizer_rules
from mb_data.tokenizers.rules import BYTE_ENTRIES, MANY_ENTRIES
from mb_schema.paths import path_problem, path_rule, paths_in
from mb_schema.rule_kinds import (
    SET,
    among,
    at_most,
    config_rule,
    dataset_rule,
    in_range,
    one_of,
    requires,
    unsupported,
    validation_rule,
)
from mb_schema.rules import Rule, RuleError, refuse, rules_in
from mb_schema.value_types import reject_wrong_types

SUPPORTED_LOADERS = (None, "single", "cyclic", "batch", "external")


class ConfigError(DataError, RuleError):
    """A section violates rules. `problems` contains all of them, and the message has a line for each."""


def check_section(values: object, *, section: str) -> None:
    """Check a section against the rules that read no other section.

    Raises:
        ConfigError: The section violates rules.
        FieldTypeError: Values have a wrong type.
    """
    reject_wrong_types(values, path=section)
    refuse({section: values}, RULES, error=ConfigError)


def _parse_problem(parse: Callable[[Any], object], value: object) -> str | None:
    """Return the message of the ValueError that parsing a value raises, without its path; None without an error."""
    try:
        if value is not None:
            parse(value)
    except ValueError as error:
        return str(error).partition(": ")[2]
    return None


@dataset_rule(
    "V044e",
    why="each prefix is sampled in proportion to its weight",
    fix="Set as many positive weights as prefixes, or none.",
    fails={"blend": (["a", "b"], [1.0])},
    passes={"blend": (["a", "b"], [0.3, 0.7])},
)
def _wrong_weights(blend):
    if blend is None or blend[1] is None:
        return None
    if len(blend[0]) != len(blend[1]):
        return f"{len(blend[0])} prefixes have {len(blend[1])} weights"
    return find_bad_weights(blend[1])


@dataset_rule(
    "V044c",
    why="it specifies the data of train, validation and test separately, so there is nothing to split",
    fix="Set three entries (a blend of prefixes and weights, or null), and neither blend nor split.",
    fails={"blend_per_split": [(["a"], None)]},
    passes={"blend_per_split": [(["a"], None), (["b"], None), None]},
)
def _check_blend_per_split(blend_per_split, blend, split):
    if blend_per_split is None:
        return None
    if blend is not None or split is not None:
        return f"set together with blend={blend!r}, split={split!r}"
    if len(blend_per_split) != len(SPLITS) or not any(blend_per_split):
        return f"has {len(blend_per_split)} entries of which {sum(map(bool, blend_per_split))} are blends"
    return next((problem for problem in map(_wrong_weights.test, blend_per_split) if problem), None)


_END_OF_DOCUMENT = ("reset_position_ids", "reset_attention_mask", "eod_mask_loss")


@dataset_rule(
    "V045",
    others=_END_OF_DOCUMENT,
    why="they change what the model learns at the end of a document, so there is no safe default",
    fix="Set each to true or false.",
    fails=dict.fromkeys(_END_OF_DOCUMENT),
    passes=dict.fromkeys(_END_OF_DOCUMENT, False),
)
def _end_of_document_unset(**switches):
    missing = [f"dataset.{name}" for name, on in switches.items() if on is None]
    return f"not set: {', '.join(missing)}" if missing else None


@dataset_rule(
    "V046",
    why="the tokens are generated, and the files would not be read",
    fix="Remove the data paths, or set dataset._target_=mb_data.config.GPTDatasetConfig to read them.",
    fails={"mock": True, "blend": (["a"], None)},
    passes={"blend": None},
)
def _mock_with_paths(mock, blend, blend_per_split, data_path):
    paths = blend or blend_per_split or data_path
    return f"is on, but data paths are set ({paths!r})" if mock and paths else None


@dataset_rule(
    "D04",
    why="a text corpus is tokenized and split from its sources",
    fix="Remove the paths and the split, or set dataset._target_=mb_data.config.GPTDatasetConfig for existing tokens.",
    fails={"sources": ["/text"], "data_path": "/data/a"},
    passes={"data_path": None},
)
def _check_corpus_paths(sources, data_path, blend, blend_per_split, split):
    if not (data_path or blend or blend_per_split or split):
        return None
    return (
        f"{sources!r} together with data_path={data_path!r}, blend={blend!r}, "
        f"blend_per_split={blend_per_split!r}, split={split!r}"
    )


@dataset_rule(
    "D05",
    why="training uses the remaining files",
    fix="Set fractions of at least 0 whose sum is below 1.",
    fails={"validation_fraction": 0.5, "test_fraction": 0.5},
    passes={"validation_fraction": 0.05, "test_fraction": 0.05},
)
def _check_fractions(validation_fraction, test_fraction):
    if (
        validation_fraction is None
        or test_fraction is None
        or (min(validation_fraction, test_fraction) >= 0 and validation_fraction + test_fraction < 1)
    ):
        return None
    return f"does not fit test_fraction (validation_fraction={validation_fraction}, test_fraction={test_fraction})"


@dataset_rule(
    "D61",
    why="an image has at least one pixel, and takes at least one token of the sequence",
    fix="Set image_size to model.image_size, and image_tokens to the number of patches.",
    fails={"image_size": 32, "image_tokens": 0},
    passes={"image_tokens": 16},
)
def _check_image_sizes(image_size, image_tokens):
    if image_size is None or image_tokens is None or (image_size >= 1 and image_tokens >= 1):
        return None
    return (
        f"must be at least 1, and so must image_tokens (image_size={image_size}, image_tokens={image_tokens})"
    )


@dataset_rule(
    "D13",
    why="the other loaders resume from the number of consumed samples, and save no position",
    fix="Leave both unset, or use dataloader_type external with a dataset that supports them.",
    fails={"dataloader_save": "/positions", "dataloader_type": "single"},
    passes={"dataloader_type": "external"},
)
def _check_loader_position(dataloader_save, dataloader_load, dataloader_type):
    fine = dataloader_type == "external" or not (dataloader_save or dataloader_load)
    return None if fine else f"save={dataloader_save!r}, load={dataloader_load!r} with {dataloader_type!r}"


PATH_FIELDS = (
    "dataset.dataloader_save",
    "dataset.dataloader_load",
    "dataset.data_path",
    "dataset.blend",
    "dataset.blend_per_split",
    "dataset.path_to_cache",
    "dataset.object_storage_cache_path",
    "dataset.per_dataset_sequences_path",
    "dataset.sources",
    "dataset.cache_dir",
    "dataset.dataset_root",
    "tokenizer.vocab_file",
    "tokenizer.merge_file",
    "tokenizer.tokenizer_model",
    "tokenizer.metadata_path",
    "tokenizer.chat_template_path",
    "dataset.hf_output_root",
)
"""Paths of the fields that contain file or folder names."""

_OBJECT_STORAGE = ("s3://", "msc://")
"""Schemes of the URLs from which Megatron Core reads pairs."""

_DATA_PATHS = ("dataset.data_path", "dataset.blend", "dataset.blend_per_split")


def _data_path_problem(value: object) -> str | None:
    """Return the problem of the first path that is neither a local one nor a URL which Megatron Core reads."""
    words = [word for text in paths_in(value) for word in text.split()]
    return path_problem([word for word in words if not word.startswith(_OBJECT_STORAGE)])


def _path_rule(number: int, path: str) -> Rule:
    if path not in _DATA_PATHS:
        return path_rule(number, path)
    return replace(
        path_rule(number, path),
        test=_data_path_problem,
        why="tokens are read from the local file system, and by Megatron Core from s3:// and msc://",
        fails={path: "gs://bucket/folder"},
    )


_PATHS = tuple(_path_rule(number, path) for number, path in enumerate(PATH_FIELDS, start=21))


@dataset_rule(
    "D111",
    why="the index and the order of the samples are files of this machine, and tokens in object storage cannot be "
    "mapped into memory",
    fix="Set dataset.object_storage_cache_path and dataset.path_to_cache to local folders, and "
    "dataset.mmap_bin_files=false.",
    fails={"data_path": "s3://bucket/mine", "mmap_bin_files": True},
    passes={
        "object_storage_cache_path": "/data/index",
        "mmap_bin_files": False,
        "path_to_cache": "/data/cache",
    },
)
def _check_object_storage(
    data_path, blend, blend_per_split, object_storage_cache_path, mmap_bin_files, path_to_cache
):
    words = [word for text in paths_in([data_path, blend, blend_per_split]) for word in text.split()]
    remote = [word for word in words if word.startswith(_OBJECT_STORAGE)]
    if not remote or (object_storage_cache_path and path_to_cache and mmap_bin_files is False):
        return None
    return (
        f"{remote[0]} is in object storage (object_storage_cache_path={object_storage_cache_path!r}, "
        f"mmap_bin_files={mmap_bin_files!r}, "
        f"path_to_cache={path_to_cache!r})"
    )


_MANY_TOKENS = "the activations of one sequence of this length exceed the memory of a data center"


@dataset_rule(
    "V042",
    why="a blend has a weight for every prefix or for none",
    fix="Write WEIGHT PREFIX WEIGHT PREFIX ... with positive weights, or prefixes only.",
    fails={"data_path": "30 a b c"},
    passes={"data_path": "30 a 70 b"},
)
def _unreadable_data_path(data_path):
    return _parse_problem(blend_from_path, data_path)


@dataset_rule(
    "V044f",
    why="it defines the parts of the documents for train, validation and test",
    fix="Set up to three ratios, for example '99,1,0'.",
    fails={"split": "0,0,0"},
    passes={"split": "99,1,0"},
)
def _unreadable_split(split):
    return _parse_problem(split_matrix, split)


@config_rule(
    "D120",
    why="a run opens them before its first step",
    fix="Correct the path or the file. Or check for another machine: mb check --gpu h100.",
    fails={"dataset": {"sources": ["nowhere"]}, "dataset_error": "dataset.sources: nowhere does not exist."},
    passes={"dataset_error": None},
)
def _unreadable_files(dataset, *, dataset_error):
    return None if dataset_error is None else f"its files cannot be read ({dataset_error.rstrip('.')})"


@validation_rule(
    "D121",
    why="a streamed dataset has no validation data, so no evaluation would be made",
    fix="Set validation.eval_interval=null.",
    fails={"eval_interval": 100, "dataset__hf_split": "train"},
    passes={"eval_interval": None},
)
def _evaluations_of_streamed_data(eval_interval, dataset__hf_split):
    return (
        f"is {eval_interval} with a streamed dataset (hf_split={dataset__hf_split})"
        if eval_interval and dataset__hf_split is not None
        else None
    )


@dataset_rule(
    "V139b",
    why="the model processes complete sequences",
    fix="Set both lengths to the same value.",
    fails={"seq_length": 4096, "model__seq_length": 2048},
    passes={"seq_length": 2048},
)
def _lengths_differ(seq_length, model__seq_length):
    return (
        f"{seq_length} differs from model.seq_length={model__seq_length}"
        if None not in (seq_length, model__seq_length) and seq_length != model__seq_length
        else None
    )


RULES: tuple[Rule, ...] = (
    *_PATHS,
    *rules_in(globals()),
    requires(
        "V044a",
        {"dataset.fast_cache_load": True},
        {"dataset.path_to_cache": SET, "dataset.blend": among(None)},
        why="it relies on indices that a previous run built for each split, in the cache folder",
        fix="Set dataset.path_to_cache and use dataset.blend_per_split, or dataset.fast_cache_load=false.",
        passes={"dataset.path_to_cache": "/cache"},
    ),
    requires(
        "V044b",
        {"dataset.defer_npy_index_mmap": True},
        {"dataset.path_to_cache": SET},
        why="the indices are read later, from the cache",
        fix="Set dataset.path_to_cache, or dataset.defer_npy_index_mmap=false.",
        passes={"dataset.path_to_cache": "/cache"},
    ),
    requires(
        "V044d",
        {"dataset.blend": SET},
        {"dataset.split": SET},
        why="validation and test use a part of the same documents",
        fix="Set dataset.split, for example '99,1,0'.",
        fails={"dataset.blend": (["a"], None)},
        passes={"dataset.split": "99,1,0"},
    ),
    one_of(
        "D01",
        "dataset.dataloader_type",
        SUPPORTED_LOADERS,
        why="there are no other loader types",
        fix="Use single, cyclic, batch or external.",
        fails="energon",
        passes="batch",
    ),
    in_range(
        "D02",
        "dataset.num_workers",
        0,
        why="it is a number of processes",
        fix="Set 0 to load in the training process.",
    ),
    in_range(
        "D03",
        "dataset.seq_length",
        1,
        why="a sample has at least one token",
        fix="Set dataset.seq_length to the model's.",
    ),
    in_range(
        "D06",
        "dataset.vocab_size",
        BYTE_ENTRIES,
        why="a byte-level vocabulary contains the 256 bytes and the end-of-document token",
        fix=f"Use {BYTE_ENTRIES} or more.",
    ),
    in_range(
        "D62",
        "dataset.image_token_id",
        below=0,
        why="ids from 0 are tokens of captions, which the model would replace by image embeddings",
        fix="Set a negative number equal to model.image_token_id.",
    ),
    unsupported(
        "D41",
        "dataset.multiple_validation_sets",
        None,
        fails=True,
        fix="Leave it unset, and build a separate dataset for each set; the trainer does so with "
        "validation.multiple_validation_sets.",
    ),
    unsupported(
        "D46",
        "dataset.trust_remote_code",
        False,
        fails=True,
        fix="Leave it off; code in a dataset is never run.",
    ),
    unsupported(
        "D47",
        "dataset.sequence_parallel_size",
        0,
        fails=2,
        fix="Leave it at 0; sequences have dataset.seq_length tokens, a multiple of what the parallel layout requires.",
    ),
    unsupported(
        "D48",
        "dataset.hybrid_context_parallel",
        False,
        fails=True,
        fix="Leave it off; every sequence is split over model.context_parallel_size ranks.",
    ),
    in_range(
        "D49",
        "dataset.num_dataset_builder_threads",
        1,
        why="building the indices needs at least one thread",
        fix="Set it to 1 or more.",
    ),
    at_most("SZ04d", "dataset.vocab_size", 10**8, why=MANY_ENTRIES),
    at_most("SZ05d", "dataset.seq_length", 10**9, why=_MANY_TOKENS),
    at_most("SZ05e", "dataset.decoder_seq_length", 10**9, why=_MANY_TOKENS),
    *tokenizer_rules.RULES,
    *t5_rules.RULES,
    *fim_rules.RULES,
    *finetuning_rules.RULES,
    *packing_rules.RULES,
    *validation_rules.RULES,
)
"""All rules of this package."""
