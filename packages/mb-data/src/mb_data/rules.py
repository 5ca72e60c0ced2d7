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
from mb_schema.rule_kinds import SET, among, at_most, in_range, one_of, requires, rule, unsupported, within
from mb_schema.rules import Rule, RuleError, refuse
from mb_schema.value_types import reject_wrong_types

SUPPORTED_LOADERS = (None, "single", "cyclic", "batch", "external")

_END_OF_DOCUMENT = ("dataset.reset_position_ids", "dataset.reset_attention_mask", "dataset.eod_mask_loss")


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


def _check_weights(blend: Any) -> str | None:
    if blend is None or blend[1] is None:
        return None
    if len(blend[0]) != len(blend[1]):
        return f"{len(blend[0])} prefixes have {len(blend[1])} weights"
    return find_bad_weights(blend[1])


def _check_blend_per_split(per_split: Any, blend: Any, split: Any) -> str | None:
    if per_split is None:
        return None
    if blend is not None or split is not None:
        return f"set together with blend={blend!r}, split={split!r}"
    if len(per_split) != len(SPLITS) or not any(per_split):
        return f"has {len(per_split)} entries of which {sum(map(bool, per_split))} are blends"
    return next((problem for problem in map(_check_weights, per_split) if problem), None)


def _find_unset(*values: Any) -> str | None:
    missing = [path for path, value in zip(_END_OF_DOCUMENT, values, strict=True) if value is None]
    return f"not set: {', '.join(missing)}" if missing else None


def _mock_with_paths(mock: Any, *paths: Any) -> str | None:
    set_paths = [path for path in paths if path]
    return f"is on, but data paths are set ({set_paths[0]!r})" if mock and set_paths else None


def _check_corpus_paths(sources: Any, data_path: Any, blend: Any, per_split: Any, split: Any) -> str | None:
    if not (data_path or blend or per_split or split):
        return None
    return (
        f"{sources!r} together with data_path={data_path!r}, blend={blend!r}, "
        f"blend_per_split={per_split!r}, split={split!r}"
    )


def _check_fractions(valid: Any, test: Any) -> str | None:
    if valid is None or test is None or (min(valid, test) >= 0 and valid + test < 1):
        return None
    return f"does not fit test_fraction (validation_fraction={valid}, test_fraction={test})"


def _check_image_sizes(size: Any, tokens: Any) -> str | None:
    if size is None or tokens is None or (size >= 1 and tokens >= 1):
        return None
    return f"must be at least 1, and so must image_tokens (image_size={size}, image_tokens={tokens})"


def _check_loader_position(save: Any, load: Any, kind: Any) -> str | None:
    fine = kind == "external" or not (save or load)
    return None if fine else f"save={save!r}, load={load!r} with {kind!r}"


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


def _check_object_storage(
    data_path: Any, blend: Any, blend_per_split: Any, index_cache: Any, is_mapped: Any, cache: Any
) -> str | None:
    words = [word for text in paths_in([data_path, blend, blend_per_split]) for word in text.split()]
    remote = [word for word in words if word.startswith(_OBJECT_STORAGE)]
    if not remote or (index_cache and cache and is_mapped is False):
        return None
    return (
        f"{remote[0]} is in object storage (object_storage_cache_path={index_cache!r}, mmap_bin_files={is_mapped!r}, "
        f"path_to_cache={cache!r})"
    )


def _same_length(model: int | None, dataset: int | None) -> str | None:
    if model is None or dataset is None or model == dataset:
        return None
    return f"{dataset} differs from model.seq_length={model}"


_MANY_TOKENS = "the activations of one sequence of this length exceed the memory of a data center"


RULES: tuple[Rule, ...] = (
    *_PATHS,
    rule(
        "V042",
        "dataset.data_path",
        lambda data_path: _parse_problem(blend_from_path, data_path),
        why="a blend has a weight for every prefix or for none",
        fix="Write WEIGHT PREFIX WEIGHT PREFIX ... with positive weights, or prefixes only.",
        fails=("30 a b c",),
        passes=("30 a 70 b",),
    ),
    rule(
        "D111",
        within(
            "dataset",
            "data_path blend blend_per_split object_storage_cache_path mmap_bin_files path_to_cache",
        ),
        _check_object_storage,
        why="the index and the order of the samples are files of this machine, and tokens in object storage cannot be "
        "mapped into memory",
        fix="Set dataset.object_storage_cache_path and dataset.path_to_cache to local folders, and "
        "dataset.mmap_bin_files=false.",
        fails=("s3://bucket/mine", None, None, None, True, None),
        passes=("s3://bucket/mine", None, None, "/data/index", False, "/data/cache"),
    ),
    requires(
        "V044a",
        {"dataset.fast_cache_load": True},
        {"dataset.path_to_cache": SET, "dataset.blend": among(None)},
        why="it relies on indices that a previous run built for each split, in the cache folder",
        fix="Set dataset.path_to_cache and use dataset.blend_per_split, or dataset.fast_cache_load=false.",
        fails=(True, None, None),
        passes=(True, "/cache", None),
    ),
    requires(
        "V044b",
        {"dataset.defer_npy_index_mmap": True},
        {"dataset.path_to_cache": SET},
        why="the indices are read later, from the cache",
        fix="Set dataset.path_to_cache, or dataset.defer_npy_index_mmap=false.",
        fails=(True, None),
        passes=(True, "/cache"),
    ),
    rule(
        "V044c",
        within("dataset", "blend_per_split blend split"),
        _check_blend_per_split,
        why="it specifies the data of train, validation and test separately, so there is nothing to split",
        fix="Set three entries (a blend of prefixes and weights, or null), and neither blend nor split.",
        fails=([(["a"], None)], None, None),
        passes=([(["a"], None), (["b"], None), None], None, None),
    ),
    requires(
        "V044d",
        {"dataset.blend": SET},
        {"dataset.split": SET},
        why="validation and test use a part of the same documents",
        fix="Set dataset.split, for example '99,1,0'.",
        fails=((["a"], None), None),
        passes=((["a"], None), "99,1,0"),
    ),
    rule(
        "V044e",
        "dataset.blend",
        _check_weights,
        why="each prefix is sampled in proportion to its weight",
        fix="Set as many positive weights as prefixes, or none.",
        fails=((["a", "b"], [1.0]),),
        passes=((["a", "b"], [0.3, 0.7]),),
    ),
    rule(
        "V044f",
        "dataset.split",
        lambda split: _parse_problem(split_matrix, split),
        why="it defines the parts of the documents for train, validation and test",
        fix="Set up to three ratios, for example '99,1,0'.",
        fails=("0,0,0",),
        passes=("99,1,0",),
    ),
    Rule(
        id="V045",
        fields=_END_OF_DOCUMENT,
        test=_find_unset,
        why="they change what the model learns at the end of a document, so there is no safe default",
        fix="Set each to true or false.",
        fails=dict.fromkeys(_END_OF_DOCUMENT),
        passes=dict.fromkeys(_END_OF_DOCUMENT, False),
    ),
    rule(
        "V046",
        within("dataset", "mock blend blend_per_split data_path"),
        _mock_with_paths,
        why="the tokens are generated, and the files would not be read",
        fix="Remove the data paths, or use GPTDatasetConfig to read them.",
        fails=(True, (["a"], None), None, None),
        passes=(True, None, None, None),
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
    rule(
        "D04",
        within("dataset", "sources data_path blend blend_per_split split"),
        _check_corpus_paths,
        why="a text corpus is tokenized and split from its sources",
        fix="Remove the paths and the split, or use GPTDatasetConfig for existing tokens.",
        fails=(["/text"], "/data/a", None, None, None),
        passes=(["/text"], None, None, None, None),
    ),
    rule(
        "D05",
        within("dataset", "validation_fraction test_fraction"),
        _check_fractions,
        why="training uses the remaining files",
        fix="Set fractions of at least 0 whose sum is below 1.",
        fails=(0.5, 0.5),
        passes=(0.05, 0.05),
    ),
    in_range(
        "D06",
        "dataset.vocab_size",
        BYTE_ENTRIES,
        why="a byte-level vocabulary contains the 256 bytes and the end-of-document token",
        fix=f"Use {BYTE_ENTRIES} or more.",
    ),
    rule(
        "D13",
        within("dataset", "dataloader_save dataloader_load dataloader_type"),
        _check_loader_position,
        why="the other loaders resume from the number of consumed samples, and save no position",
        fix="Leave both unset, or use dataloader_type external with a dataset that supports them.",
        fails=("/positions", None, "single"),
        passes=("/positions", None, "external"),
    ),
    rule(
        "D61",
        within("dataset", "image_size image_tokens"),
        _check_image_sizes,
        why="an image has at least one pixel, and takes at least one token of the sequence",
        fix="Set image_size to model.image_size, and image_tokens to the number of patches.",
        fails=(32, 0),
        passes=(32, 16),
    ),
    in_range(
        "D62",
        "dataset.image_token_id",
        below=0,
        why="ids from 0 are tokens of captions, which the model would replace by image embeddings",
        fix="Set a negative number equal to model.image_token_id.",
        fails=0,
        passes=-200,
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
    rule(
        "D120",
        ("dataset.dataloader_type", "facts.dataset_error"),
        lambda kind, error: (
            None if error is None else f"the files of the dataset cannot be read ({error.rstrip('.')})"
        ),
        why="a run opens them before its first step",
        fix="Correct the path or the file. For a check of another machine, name its GPU, as in --gpu h100.",
        fails=("single", "dataset.sources: nowhere does not exist."),
        passes=("single", None),
    ),
    rule(
        "D121",
        ("validation.eval_interval", "dataset.hf_split"),
        lambda interval, split: (
            f"is {interval} with a streamed dataset (hf_split={split})"
            if interval is not None and split is not None
            else None
        ),
        why="a streamed dataset has no validation data, so no evaluation would be made",
        fix="Set validation.eval_interval=null.",
        fails=(100, "train"),
        passes=(None, "train"),
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
    rule(
        "V139b",
        ("dataset.seq_length", "model.seq_length"),
        lambda dataset, model: _same_length(model, dataset),
        why="the model processes complete sequences",
        fix="Set both lengths to the same value.",
        fails=(4096, 2048),
        passes=(2048, 2048),
    ),
)
"""All rules of this package."""
