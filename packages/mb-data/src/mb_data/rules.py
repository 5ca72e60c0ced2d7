"""Rules for the sections of this package, as pure functions of values. Standard library only.

A rule applies if its sections exist and have its first field. For any other field that a section lacks, the test may
receive None. Custom dataset providers have none or only some of the GPT fields, so a test accepts None unless it is the
value that the rule rejects.
"""

from collections.abc import Callable
from typing import Any

from mb_data import fim_rules, finetuning_rules, t5_rules, tokenizer_rules
from mb_data.blend import SPLITS, blend_from_path, find_bad_weights, split_matrix
from mb_data.paths import path_rule
from mb_data.rule import Rule as Rule
from mb_data.rule import inert, unless
from mb_data.tokenizer_rules import BYTE_ENTRIES
from mb_data.value_types import reject_wrong_types

SUPPORTED_LOADERS = (None, "single", "cyclic", "batch", "external")

_END_OF_DOCUMENT = ("dataset.reset_position_ids", "dataset.reset_attention_mask", "dataset.eod_mask_loss")


class ConfigError(ValueError):
    """A section violates rules; the message lists all of them, one per line."""


def check_section(values: object, *, section: str) -> None:
    """Check a section against the rules that read no other section.

    Raises:
        ConfigError: The section violates rules. The message has a line `path: problem [id]; reason. Fix.` for each.
        FieldTypeError: Values have a wrong type.
    """
    reject_wrong_types(values, path=section)
    problems = []
    for rule in RULES:
        names = [path.removeprefix(f"{section}.") for path in rule.fields]
        if not all(hasattr(values, name) for name in names):
            continue
        problem = rule.test(*(getattr(values, name) for name in names))
        if problem is not None and rule.severity == "error":
            problems.append(f"{rule.fields[0]}: {problem} [{rule.id}]; {rule.why}. {rule.fix}")
    if problems:
        raise ConfigError("\n".join(problems))


def _parse_problem(read: Callable[[Any], object], value: object) -> str | None:
    """Return the message of the ValueError that parsing a value raises, without its path; None without an error."""
    try:
        if value is not None:
            read(value)
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
    given = [path for path in paths if path]
    return f"is on, but data paths are set ({given[0]!r})" if mock and given else None


def _check_fast_cache_load(fast: Any, path_to_cache: Any, blend: Any) -> str | None:
    return unless(
        not fast or (path_to_cache is not None and blend is None),
        f"is on with path_to_cache={path_to_cache!r}, blend={blend!r}",
    )


def _check_corpus_paths(sources: Any, data_path: Any, blend: Any, per_split: Any, split: Any) -> str | None:
    return unless(
        not (data_path or blend or per_split or split),
        f"{sources!r} together with data_path={data_path!r}, blend={blend!r}, "
        f"blend_per_split={per_split!r}, split={split!r}",
    )


def _check_fractions(valid: Any, test: Any) -> str | None:
    if valid is None or test is None:
        return None
    return unless(min(valid, test) >= 0 and valid + test < 1, f"validation {valid}, test {test}")


def _check_image_sizes(size: Any, tokens: Any) -> str | None:
    if size is None or tokens is None:
        return None
    return unless(size >= 1 and tokens >= 1, f"{size} pixels, {tokens} tokens")


def _check_loader_position(save: Any, load: Any, kind: Any) -> str | None:
    return unless(kind == "external" or not (save or load), f"save={save!r}, load={load!r} with {kind!r}")


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
)
"""Paths of the fields that contain file or folder names."""

_PATHS = tuple(Rule(**path_rule(number, path)) for number, path in enumerate(PATH_FIELDS, start=21))

RULES: tuple[Rule, ...] = (
    *_PATHS,
    Rule(
        id="V042",
        fields=("dataset.data_path",),
        test=lambda data_path: _parse_problem(blend_from_path, data_path),
        why="a blend has a weight for every prefix or for none",
        fix="Write WEIGHT PREFIX WEIGHT PREFIX ... with positive weights, or prefixes only.",
        fails={"dataset.data_path": "30 a b c"},
        passes={"dataset.data_path": "30 a 70 b"},
    ),
    Rule(
        id="V044a",
        fields=("dataset.fast_cache_load", "dataset.path_to_cache", "dataset.blend"),
        test=_check_fast_cache_load,
        why="it relies on indices that a previous run built for each split, in the cache folder",
        fix="Set dataset.path_to_cache and use dataset.blend_per_split, or dataset.fast_cache_load=false.",
        fails={"dataset.fast_cache_load": True, "dataset.path_to_cache": None, "dataset.blend": None},
        passes={"dataset.fast_cache_load": True, "dataset.path_to_cache": "/cache", "dataset.blend": None},
    ),
    Rule(
        id="V044b",
        fields=("dataset.defer_npy_index_mmap", "dataset.path_to_cache"),
        test=lambda defer, path: unless(not defer or path is not None, "is on without path_to_cache"),
        why="the indices are read later, from the cache",
        fix="Set dataset.path_to_cache, or dataset.defer_npy_index_mmap=false.",
        fails={"dataset.defer_npy_index_mmap": True, "dataset.path_to_cache": None},
        passes={"dataset.defer_npy_index_mmap": True, "dataset.path_to_cache": "/cache"},
    ),
    Rule(
        id="V044c",
        fields=("dataset.blend_per_split", "dataset.blend", "dataset.split"),
        test=_check_blend_per_split,
        why="it specifies the data of train, validation and test separately, so there is nothing to split",
        fix="Set three entries (a blend of prefixes and weights, or null), and neither blend nor split.",
        fails={"dataset.blend_per_split": [(["a"], None)], "dataset.blend": None, "dataset.split": None},
        passes={
            "dataset.blend_per_split": [(["a"], None), (["b"], None), None],
            "dataset.blend": None,
            "dataset.split": None,
        },
    ),
    Rule(
        id="V044d",
        fields=("dataset.blend", "dataset.split"),
        test=lambda blend, split: unless(blend is None or split is not None, f"{blend!r} without a split"),
        why="validation and test use a part of the same documents",
        fix="Set dataset.split, for example '99,1,0'.",
        fails={"dataset.blend": (["a"], None), "dataset.split": None},
        passes={"dataset.blend": (["a"], None), "dataset.split": "99,1,0"},
    ),
    Rule(
        id="V044e",
        fields=("dataset.blend",),
        test=_check_weights,
        why="each prefix is sampled in proportion to its weight",
        fix="Set as many positive weights as prefixes, or none.",
        fails={"dataset.blend": (["a", "b"], [1.0])},
        passes={"dataset.blend": (["a", "b"], [0.3, 0.7])},
    ),
    Rule(
        id="V044f",
        fields=("dataset.split",),
        test=lambda split: _parse_problem(split_matrix, split),
        why="it defines the parts of the documents for train, validation and test",
        fix="Set up to three ratios, for example '99,1,0'.",
        fails={"dataset.split": "0,0,0"},
        passes={"dataset.split": "99,1,0"},
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
    Rule(
        id="V046",
        fields=("dataset.mock", "dataset.blend", "dataset.blend_per_split", "dataset.data_path"),
        test=_mock_with_paths,
        why="the tokens are generated, and the files would not be read",
        fix="Remove the data paths, or use GPTDatasetConfig to read them.",
        fails={
            "dataset.mock": True,
            "dataset.blend": (["a"], None),
            "dataset.blend_per_split": None,
            "dataset.data_path": None,
        },
        passes={
            "dataset.mock": True,
            "dataset.blend": None,
            "dataset.blend_per_split": None,
            "dataset.data_path": None,
        },
    ),
    Rule(
        id="D01",
        fields=("dataset.dataloader_type",),
        test=lambda kind: unless(kind in SUPPORTED_LOADERS, f"{kind!r}"),
        why="there are no other loader types",
        fix="Use single, cyclic, batch or external.",
        fails={"dataset.dataloader_type": "energon"},
        passes={"dataset.dataloader_type": "batch"},
    ),
    Rule(
        id="D02",
        fields=("dataset.num_workers",),
        test=lambda workers: unless(workers is None or workers >= 0, f"{workers}"),
        why="it is a number of processes",
        fix="Set 0 to load in the training process.",
        fails={"dataset.num_workers": -1},
        passes={"dataset.num_workers": 0},
    ),
    Rule(
        id="D03",
        fields=("dataset.seq_length",),
        test=lambda seq_length: unless(seq_length is None or seq_length > 0, f"{seq_length} tokens"),
        why="a sample has at least one token",
        fix="Set dataset.seq_length to the model's.",
        fails={"dataset.seq_length": 0},
        passes={"dataset.seq_length": 2048},
    ),
    Rule(
        id="D04",
        fields=(
            "dataset.sources",
            "dataset.data_path",
            "dataset.blend",
            "dataset.blend_per_split",
            "dataset.split",
        ),
        test=_check_corpus_paths,
        why="a text corpus is tokenized and split by file from its sources",
        fix="Remove the paths and the split, or use GPTDatasetConfig for existing tokens.",
        fails={
            "dataset.sources": ["/text"],
            "dataset.data_path": "/data/a",
            "dataset.blend": None,
            "dataset.blend_per_split": None,
            "dataset.split": None,
        },
        passes={
            "dataset.sources": ["/text"],
            "dataset.data_path": None,
            "dataset.blend": None,
            "dataset.blend_per_split": None,
            "dataset.split": None,
        },
    ),
    Rule(
        id="D05",
        fields=("dataset.validation_fraction", "dataset.test_fraction"),
        test=_check_fractions,
        why="training uses the remaining files",
        fix="Set fractions of at least 0 whose sum is below 1.",
        fails={"dataset.validation_fraction": 0.5, "dataset.test_fraction": 0.5},
        passes={"dataset.validation_fraction": 0.05, "dataset.test_fraction": 0.05},
    ),
    Rule(
        id="D06",
        fields=("dataset.vocab_size",),
        test=lambda size: unless(size is None or size >= BYTE_ENTRIES, f"{size} entries"),
        why="a byte-level vocabulary contains the 256 bytes and the end-of-document token",
        fix=f"Use {BYTE_ENTRIES} or more.",
        fails={"dataset.vocab_size": 256},
        passes={"dataset.vocab_size": 4096},
    ),
    Rule(
        id="D13",
        fields=("dataset.dataloader_save", "dataset.dataloader_load", "dataset.dataloader_type"),
        test=_check_loader_position,
        why="the other loaders resume from the number of consumed samples, and save no position",
        fix="Leave both unset, or use dataloader_type external with a dataset that supports them.",
        fails={
            "dataset.dataloader_save": "/positions",
            "dataset.dataloader_load": None,
            "dataset.dataloader_type": "single",
        },
        passes={
            "dataset.dataloader_save": "/positions",
            "dataset.dataloader_load": None,
            "dataset.dataloader_type": "external",
        },
    ),
    Rule(
        id="D61",
        fields=("dataset.image_size", "dataset.image_tokens"),
        test=_check_image_sizes,
        why="an image has at least one pixel, and takes at least one token of the sequence",
        fix="Set image_size to model.image_size, and image_tokens to the number of patches.",
        fails={"dataset.image_size": 32, "dataset.image_tokens": 0},
        passes={"dataset.image_size": 32, "dataset.image_tokens": 16},
    ),
    Rule(
        id="D62",
        fields=("dataset.image_token_id",),
        test=lambda number: unless(number is None or number < 0, f"is {number}"),
        why="ids from 0 are tokens of captions, which the model would replace by image embeddings",
        fix="Set a negative number equal to model.image_token_id.",
        fails={"dataset.image_token_id": 0},
        passes={"dataset.image_token_id": -200},
    ),
    inert(
        "D41",
        "dataset.multiple_validation_sets",
        neutral=None,
        requested=True,
        fix="Leave it unset, and build a separate dataset for each set; the trainer does so with "
        "validation.multiple_validation_sets.",
    ),
    inert(
        "D46",
        "dataset.trust_remote_code",
        neutral=False,
        requested=True,
        fix="Leave it off; code in a dataset is never run.",
    ),
    inert(
        "D47",
        "dataset.sequence_parallel_size",
        neutral=0,
        requested=2,
        fix="Leave it at 0; sequences have dataset.seq_length tokens, a multiple of what the parallel layout requires.",
    ),
    inert(
        "D48",
        "dataset.hybrid_context_parallel",
        neutral=False,
        requested=True,
        fix="Leave it off; every sequence is split over model.context_parallel_size ranks.",
    ),
    Rule(
        id="D49",
        fields=("dataset.num_dataset_builder_threads",),
        test=lambda threads: unless(threads is None or threads >= 1, f"is {threads}"),
        why="building the indices needs at least one thread",
        fix="Set it to 1 or more.",
        fails={"dataset.num_dataset_builder_threads": 0},
        passes={"dataset.num_dataset_builder_threads": 1},
    ),
    *tokenizer_rules.RULES,
    *t5_rules.RULES,
    *fim_rules.RULES,
    *finetuning_rules.RULES,
)
"""All rules of this package."""
