"""Rules for the sections of fine-tuning data, and for complete global batches. Standard library only.

The rules do not apply to a dataset that lacks their first field.
"""

from typing import Any

from mb_data.errors import BlendError
from mb_data.finetuning.hub_config import PRESETS
from mb_data.finetuning.options import read_options
from mb_data.megatron.blend import blend_from_path
from mb_schema.rule_kinds import SET, among, excludes, implied_by, in_range, requires, rule
from mb_schema.rules import Rule, value_at

_FINETUNING = "dataset.made_up"
"""Field that these sections have (False or True) and custom providers do not, so that a test can distinguish them."""

_ROOT = ("dataset.dataset_root", _FINETUNING)
_GROWING = ("dataset.dataloader_type", "train.rampup_batch_size", "train.step_batch_size_schedule")
_OPTIONS = ("dataset.dataset_kwargs", _FINETUNING)
_GRAPH = (*_OPTIONS, "model.cuda_graph_impl")
_BLOCKS = ("dataset.seq_length", "model.fp8", "model.fp4", "dataset.packed_sequence_specs", _FINETUNING)
_BLOCK = 32
"""Maximum number of tokens that share a quantization scale."""

_PACKS = "dataset.packed_sequence_specs"
_HUB = "dataset.hf_dataset"


def get_spec(specs: Any, name: str) -> Any:
    """Return a field of packing specs, which may be an object, a mapping or None."""
    return value_at(f"specs.{name}", {"specs": specs})


def _no_data(root: Any, made_up: Any, specs: Any, source: Any) -> str | None:
    has_data = (
        made_up is None or root or source or made_up or get_spec(specs, "packed_train_data_path") is not None
    )
    return None if has_data else f"is {root!r}"


def _bad_source(root: Any, made_up: Any, source: Any, validation: Any, share: Any) -> str | None:
    if made_up is None or source is None:
        return None
    name, path = (get_spec(source, field) for field in ("dataset_name", "path_or_dataset"))
    if root:
        return f"is {root!r}, and dataset.hf_dataset is set"
    if (name is None) == (path is None):
        return f"is null, and dataset.hf_dataset has dataset_name={name!r}, path_or_dataset={path!r}"
    if name is not None and name not in PRESETS:
        return f"is null, and dataset.hf_dataset.dataset_name={name!r} is not one of {', '.join(PRESETS)}"
    if share is not None and (validation is not None or not 0 < share < 1):
        return f"is null, and hf_validation_proportion is {share}, hf_validation_dataset {validation!r}"
    return None


def _bad_roots(roots: Any, made_up: Any, limit: Any) -> str | None:
    if made_up is None or not isinstance(roots, list):
        return None
    try:
        blend_from_path(roots, field="dataset.dataset_root")
    except BlendError as error:
        return str(error).removeprefix("dataset.dataset_root: ").partition(";")[0].rstrip(".")
    return None if limit is None else f"is a list with max_train_samples={limit}"


def _bad_options(dataset_kwargs: Any, made_up: Any) -> str | None:
    if made_up is None:
        return None
    try:
        read_options(dataset_kwargs)
    except ValueError as error:
        return str(error)
    return None


def _growing_batch(kind: Any, rampup: Any, schedule: Any) -> str | None:
    if kind != "batch" or not (rampup or schedule):
        return None
    return f"is batch with rampup_batch_size={rampup}, step_batch_size_schedule={schedule!r}"


def _wrong_pack_length(specs: Any, length: Any) -> str | None:
    size, multiple = get_spec(specs, "packed_sequence_size"), get_spec(specs, "pad_seq_to_mult") or 1
    if specs is None or size is None or length is None or size < 1:
        return None
    if size != length:
        return f"has packs of {size} tokens with seq_length={length}"
    if multiple < 1 or size % multiple == 0:  # V048 rejects a multiple below 1
        return None
    return f"has packs of {size} tokens and pad_seq_to_mult={multiple}"


def _unread_specs(specs: Any) -> str | None:
    name, metadata = (get_spec(specs, field) for field in ("tokenizer_model_name", "packed_metadata_path"))
    if name is not None:
        return f"has tokenizer_model_name={name}, which would have no effect"
    is_read = get_spec(specs, "pad_cu_seqlens") and get_spec(specs, "packed_train_data_path") is not None
    if metadata is None or is_read:
        return None
    return f"has packed_metadata_path={metadata} without packed_train_data_path and pad_cu_seqlens=true"


def _shapes_differ(dataset_kwargs: Any, made_up: Any, graphs: Any) -> str | None:
    if made_up is None or graphs in (None, "none") or _bad_options(dataset_kwargs, made_up):
        return None
    if read_options(dataset_kwargs).pad_to_max_length:
        return None
    return f"lacks pad_to_max_length with cuda_graph_impl={graphs}"


def _endless_data(epochs: Any, made_up: Any, kind: Any) -> str | None:
    if epochs is None:
        return None
    if made_up is None:
        return f"is {epochs:g} without fine-tuning data"
    return None if kind in ("batch", "single") else f"is {epochs:g} with dataloader_type={kind}"


def _partial_blocks(length: Any, fp8: Any, fp4: Any, specs: Any, made_up: Any) -> str | None:
    few_bits = f"fp8={fp8}" if fp8 else f"fp4={fp4}"
    fine = made_up is None or specs is not None or not (fp8 or fp4) or not length or length % _BLOCK == 0
    return None if fine else f"is {length} with {few_bits}"


def _wrong_multiple(dataset_kwargs: Any, made_up: Any, length: Any, specs: Any) -> str | None:
    if made_up is None or _bad_options(dataset_kwargs, made_up):
        return None
    multiple = read_options(dataset_kwargs).pad_seq_length_to_mult
    if multiple == 1 or (specs is None and (not length or length % multiple == 0)):
        return None
    return f"has pad_seq_length_to_mult={multiple} with " + (
        "packed_sequence_specs" if specs is not None else f"seq_length={length}"
    )


RULES: tuple[Rule, ...] = (
    rule(
        "V047",
        (*_ROOT, _PACKS, _HUB),
        _no_data,
        why="samples are read from training.jsonl, validation.jsonl and test.jsonl in this folder",
        fix="Set dataset.dataset_root to a folder that contains these files, or dataset.hf_dataset.",
        fails=(None, False, None, None),
        passes=("/data/answers", False, None, None),
    ),
    rule(
        "D113",
        (*_ROOT, _HUB, "dataset.hf_validation_dataset", "dataset.hf_validation_proportion"),
        _bad_source,
        why="samples have one origin, and a dataset of the hub is named once",
        fix="Set dataset.dataset_root or dataset.hf_dataset, in it dataset_name or path_or_dataset, and for validation "
        "a dataset or a proportion between 0 and 1.",
        fails=("/data/answers", False, {"dataset_name": "squad"}, None, None),
        passes=(None, False, {"dataset_name": "squad"}, None, 0.1),
    ),
    rule(
        "D114",
        ("dataset.enable_offline_packing", _PACKS, _FINETUNING),
        lambda enabled, specs, made_up: (
            "is true without packed_sequence_specs"
            if made_up is not None and enabled and specs is None
            else None
        ),
        why="the specs have the length of a pack",
        fix="Set dataset.packed_sequence_specs (offline_packing_specs), or dataset.enable_offline_packing=false.",
        fails=(True, None, False),
        passes=(True, {"packed_sequence_size": 1024}, False),
    ),
    rule(
        "V047a",
        _OPTIONS,
        _bad_options,
        why="the keys are options that control how lines become samples; the run determines the number of samples",
        fix="Correct the option, or remove it, on a command line as ~dataset.dataset_kwargs.prompt_template.",
        fails=({"max_num_samples": 100}, False),
        passes=({"prompt_template": "Q: {input}\nA: {output}"}, False),
    ),
    rule(
        "D105",
        (_PACKS, "dataset.max_train_samples"),
        lambda specs, limit: (
            f"has packed_train_data_path with max_train_samples={limit}"
            if limit is not None and get_spec(specs, "packed_train_data_path") is not None
            else None
        ),
        why="the samples of existing packs are not in the order of a file",
        fix="Leave dataset.max_train_samples unset, or packed_train_data_path.",
        fails=({"packed_train_data_path": "packs.npy"}, 8),
        passes=({"packed_train_data_path": "packs.npy"}, None),
    ),
    rule(
        "D104",
        (*_ROOT, "dataset.max_train_samples"),
        _bad_roots,
        why="samples are drawn from the folders in proportion to their weights, without a first one of all",
        fix="Write [WEIGHT, FOLDER, WEIGHT, FOLDER, ...] with positive weights or folders only, and leave "
        "dataset.max_train_samples unset.",
        fails=(["30", "a", "b", "c"], False, None),
        passes=(["30", "a", "70", "b"], False, None),
    ),
    rule(
        "D103",
        (*_OPTIONS, "dataset.seq_length", _PACKS),
        _wrong_multiple,
        why="the longest batch is padded to it and must not exceed seq_length; packs are padded to their full length",
        fix="Set dataset.seq_length to a multiple; with packs, set packed_sequence_specs.pad_seq_to_mult instead.",
        fails=({"pad_seq_length_to_mult": 16}, False, 1000, None),
        passes=({"pad_seq_length_to_mult": 16}, False, 1024, None),
    ),
    rule(
        "V105",
        _GRAPH,
        _shapes_differ,
        why="a captured graph requires micro-batches of one fixed length",
        fix="Set dataset.dataset_kwargs.pad_to_max_length=true, or model.cuda_graph_impl=none.",
        fails=(None, False, "local"),
        passes=({"pad_to_max_length": True}, False, "local"),
    ),
    rule(
        "D70",
        (_PACKS, "dataset.seq_length"),
        _wrong_pack_length,
        why="a pack is the complete sequence that the model reads; max_single_sequence_length limits single samples",
        fix="Set model.seq_length and dataset.seq_length to packed_sequence_size, a multiple of pad_seq_to_mult.",
        fails=({"packed_sequence_size": 4096}, 1024),
        passes=({"packed_sequence_size": 4096}, 4096),
    ),
    rule(
        "D73",
        _PACKS,
        _unread_specs,
        why="packs made by this package are named and described by their content; of other packs only the length of "
        "cu_seqlens depends on their statistics",
        fix="Leave it unset.",
        fails=({"packed_sequence_size": 4096, "packed_metadata_path": "packed.jsonl"},),
        passes=({"packed_sequence_size": 4096},),
    ),
    implied_by(
        "V139",
        requires(
            "D74",
            {_PACKS: SET},
            {"validation.eval_micro_batch_size": among(None, 1)},
            why="a micro-batch is a single pack, also in evaluation",
            fix="Set validation.eval_micro_batch_size=1, or leave it unset.",
            fails=({"packed_sequence_size": 4096}, 4),
            passes=({"packed_sequence_size": 4096}, 1),
        ),
    ),
    rule(
        "D71",
        _GROWING,
        _growing_batch,
        why="the batch loader draws complete global batches of a fixed size",
        fix="Use dataset.dataloader_type=single, or a constant global batch size.",
        fails=("batch", [8, 8, 100], None),
        passes=("single", [8, 8, 100], None),
    ),
    excludes(
        "D72",
        {"dataset.dataloader_type": "batch", "dataset.drop_last": among(False)},
        why="a step consumes a complete global batch, and an incomplete one is dropped",
        fix="Set dataset.drop_last=true, or dataset.dataloader_type=single.",
        fails=("batch", False),
        passes=("batch", True),
    ),
    in_range(
        "D77",
        "dataset.memmap_workers",
        1,
        why="tokenization needs at least one process",
        fix="Set dataset.memmap_workers to 1 or more.",
    ),
    in_range(
        "D78",
        "dataset.max_train_samples",
        1,
        why="training needs at least one sample",
        fix="Set dataset.max_train_samples to 1 or more, or to null for all.",
    ),
    in_range(
        "D79",
        "dataset.largest",
        2,
        999,
        why="all sums of two numbers up to it are written, and a fraction of them is held out",
        fix="Set dataset.largest from 2 to 999.",
    ),
    rule(
        "D80",
        ("dataset.dataloader_type", _FINETUNING),
        lambda kind, made_up: (
            "is external for prompts with answers" if made_up is not None and kind == "external" else None
        ),
        why="an external loader yields finished batches, but this dataset yields samples by index",
        fix="Use dataset.dataloader_type=batch, single or cyclic.",
        fails=("external", False),
        passes=("batch", False),
    ),
    rule(
        "D82",
        ("model.calculate_per_token_loss", _FINETUNING),
        lambda per_token, made_up: (
            "is false with samples that differ" if made_up is not None and per_token is False else None
        ),
        why="every micro-batch then has the same weight in a step, so that the weight of an answer depends on the "
        "number of other tokens in its micro-batch",
        fix="Set model.calculate_per_token_loss=true to give each token in the loss the same weight.",
        fails=(False, False),
        passes=(True, False),
        severity="warning",
    ),
    rule(
        "V100",
        ("train.num_epochs", _FINETUNING, "dataset.dataloader_type"),
        _endless_data,
        why="only prompts with answers and conversations have epochs of a known size, and other loaders have none",
        fix="Set train.train_iters instead, or a dataset for fine-tuning with dataloader_type=batch or single.",
        fails=(3.0, None, "single"),
        passes=(3.0, False, "batch"),
    ),
    rule(
        "D106",
        ("train.num_epochs", "facts.training_samples_error"),
        lambda epochs, error: (
            None if epochs is None or error is None else f"has no length ({error.rstrip('.')})"
        ),
        why="the number of steps follows from the number of training samples",
        fix="Correct the data, or set train.train_iters instead.",
        fails=(3.0, "training.jsonl: line 1 is not JSON."),
        passes=(3.0, None),
    ),
    rule(
        "D83",
        _BLOCKS,
        _partial_blocks,
        why=f"batches are then padded to a multiple of {_BLOCK} tokens, and the longest would exceed seq_length",
        fix=f"Set dataset.seq_length and model.seq_length to a multiple of {_BLOCK}, or disable FP8 and FP4.",
        fails=(1000, "hybrid", None, None, False),
        passes=(1024, "hybrid", None, None, False),
    ),
)
"""All rules for fine-tuning data and complete global batches."""
