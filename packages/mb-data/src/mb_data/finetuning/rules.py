"""Rules for the sections of fine-tuning data, and for complete global batches. Standard library only.

The rules do not apply to a dataset that lacks their first field.
"""

from typing import Any

from mb_data.errors import BlendError
from mb_data.finetuning.hub_config import PRESETS
from mb_data.finetuning.options import read_options
from mb_data.loading.batch_padding import QUANTIZED_BLOCK
from mb_data.megatron.blend import blend_from_path
from mb_schema.rule_kinds import (
    SET,
    among,
    dataset_rule,
    excludes,
    in_range,
    model_rule,
    requires,
    train_rule,
)
from mb_schema.rules import Rule, rules_in, value_at

_PACKS = "dataset.packed_sequence_specs"


def get_spec(specs: Any, name: str) -> Any:
    """Return a field of packing specs, which may be an object, a mapping or None."""
    return value_at(f"specs.{name}", {"specs": specs})


@dataset_rule(
    "V047",
    why="samples are read from training.jsonl, validation.jsonl and test.jsonl in this folder",
    fix="Set dataset.dataset_root to a folder that contains these files, or dataset.hf_dataset.",
    fails={"dataset_root": None, "made_up": False},
    passes={"dataset_root": "/data/answers"},
)
def _no_data(dataset_root, made_up, packed_sequence_specs, hf_dataset):
    has_data = (
        made_up is None
        or dataset_root
        or hf_dataset
        or made_up
        or get_spec(packed_sequence_specs, "packed_train_data_path") is not None
    )
    return None if has_data else f"is {dataset_root!r}"


@dataset_rule(
    "D113",
    why="samples have one origin, and a dataset of the hub is named once",
    fix="Set dataset.dataset_root or dataset.hf_dataset, in it dataset_name or path_or_dataset, and for validation "
    "a dataset or a proportion between 0 and 1.",
    fails={"dataset_root": "/data/answers", "made_up": False, "hf_dataset": {"dataset_name": "squad"}},
    passes={"dataset_root": None, "hf_validation_proportion": 0.1},
)
def _bad_source(dataset_root, made_up, hf_dataset, hf_validation_dataset, hf_validation_proportion):
    if made_up is None or hf_dataset is None:
        return None
    name, path = (get_spec(hf_dataset, field) for field in ("dataset_name", "path_or_dataset"))
    if dataset_root:
        return f"is {dataset_root!r}, and dataset.hf_dataset is set"
    if (name is None) == (path is None):
        return f"is null, and dataset.hf_dataset has dataset_name={name!r}, path_or_dataset={path!r}"
    adapters = [preset for preset, form in PRESETS.items() if form.prompt is not None and path is not None]
    for field, known in (("dataset_name", [*PRESETS]), ("schema_adapter", adapters)):
        value = get_spec(hf_dataset, field)
        if value is not None and value not in known:
            names = ", ".join(known) or "the adapters: the dataset has its own"
            return f"is null, and dataset.hf_dataset.{field}={value!r} is not one of {names}"
    if hf_validation_proportion is not None and (
        hf_validation_dataset is not None or not 0 < hf_validation_proportion < 1
    ):
        return (
            f"is null, and hf_validation_proportion is {hf_validation_proportion}, hf_validation_dataset "
            f"{hf_validation_dataset!r}"
        )
    return None


@dataset_rule(
    "D104",
    why="samples are drawn from the folders in proportion to their weights, without a first one of all",
    fix="Write [WEIGHT, FOLDER, WEIGHT, FOLDER, ...] with positive weights or folders only, and leave "
    "dataset.max_train_samples unset.",
    fails={"dataset_root": ["30", "a", "b", "c"], "made_up": False},
    passes={"dataset_root": ["30", "a", "70", "b"]},
)
def _bad_roots(dataset_root, made_up, max_train_samples):
    if made_up is None or not isinstance(dataset_root, list):
        return None
    try:
        blend_from_path(dataset_root, field="dataset.dataset_root")
    except BlendError as error:
        return str(error).removeprefix("dataset.dataset_root: ").partition(";")[0].rstrip(".")
    return None if max_train_samples is None else f"is a list with max_train_samples={max_train_samples}"


@dataset_rule(
    "V047a",
    why="the keys are options that control how lines become samples; the run determines the number of samples",
    fix="Correct the option, or remove it, on a command line as ~dataset.dataset_kwargs.prompt_template.",
    fails={"dataset_kwargs": {"max_num_samples": 100}, "made_up": False},
    passes={"dataset_kwargs": {"prompt_template": "Q: {input}\nA: {output}"}},
)
def _bad_options(dataset_kwargs, made_up):
    if made_up is None:
        return None
    try:
        read_options(dataset_kwargs)
    except ValueError as error:
        return str(error)
    return None


@dataset_rule(
    "D71",
    why="the batch loader draws complete global batches of a fixed size",
    fix="Use dataset.dataloader_type=single, or a constant global batch size.",
    fails={"dataloader_type": "batch", "train__rampup_batch_size": [8, 8, 100]},
    passes={"dataloader_type": "single"},
)
def _growing_batch(dataloader_type, train__rampup_batch_size, train__step_batch_size_schedule):
    if dataloader_type != "batch" or not (train__rampup_batch_size or train__step_batch_size_schedule):
        return None
    return (
        f"is batch with rampup_batch_size={train__rampup_batch_size}, "
        f"step_batch_size_schedule={train__step_batch_size_schedule!r}"
    )


@dataset_rule(
    "D70",
    why="a pack is the complete sequence that the model reads; max_single_sequence_length limits single samples",
    fix="Set model.seq_length and dataset.seq_length to packed_sequence_size, a multiple of pad_seq_to_mult.",
    fails={"packed_sequence_specs": {"packed_sequence_size": 4096}, "seq_length": 1024},
    passes={"seq_length": 4096},
)
def _wrong_pack_length(packed_sequence_specs, seq_length):
    size, multiple = (
        get_spec(packed_sequence_specs, "packed_sequence_size"),
        get_spec(packed_sequence_specs, "pad_seq_to_mult") or 1,
    )
    if packed_sequence_specs is None or size is None or seq_length is None or size < 1:
        return None
    if size != seq_length:
        return f"has packs of {size} tokens with seq_length={seq_length}"
    if multiple < 1 or size % multiple == 0:  # V048 rejects a multiple below 1
        return None
    return f"has packs of {size} tokens and pad_seq_to_mult={multiple}"


@dataset_rule(
    "D73",
    why="of packs that this package did not make, only the length of cu_seqlens depends on their statistics",
    fix="Leave it unset.",
    fails={"packed_sequence_specs": {"packed_sequence_size": 4096, "packed_metadata_path": "packed.jsonl"}},
    passes={"packed_sequence_specs": {"packed_sequence_size": 4096}},
)
def _unread_specs(packed_sequence_specs):
    metadata = get_spec(packed_sequence_specs, "packed_metadata_path")
    is_read = (
        get_spec(packed_sequence_specs, "pad_cu_seqlens")
        and get_spec(packed_sequence_specs, "packed_train_data_path") is not None
    )
    if metadata is None or is_read:
        return None
    return f"has packed_metadata_path={metadata} without packed_train_data_path and pad_cu_seqlens=true"


@dataset_rule(
    "D124",
    why="packs made by this package are named and described by their content",
    fix="Leave it unset.",
    fails={"packed_sequence_specs": {"packed_sequence_size": 4096, "tokenizer_model_name": "llama"}},
    passes={"packed_sequence_specs": {"packed_sequence_size": 4096}},
    severity="warning",
)
def _unread_name(packed_sequence_specs):
    name = get_spec(packed_sequence_specs, "tokenizer_model_name")
    return None if name is None else f"has tokenizer_model_name={name}, which has no effect"


@dataset_rule(
    "V105",
    why="a captured graph requires micro-batches of one fixed length",
    fix="Set dataset.dataset_kwargs.pad_to_max_length=true, or model.cuda_graph_impl=none.",
    fails={"dataset_kwargs": None, "made_up": False, "model__cuda_graph_impl": "local"},
    passes={"dataset_kwargs": {"pad_to_max_length": True}},
)
def _shapes_differ(dataset_kwargs, made_up, model__cuda_graph_impl):
    if (
        made_up is None
        or model__cuda_graph_impl in (None, "none")
        or _bad_options.test(dataset_kwargs, made_up)
    ):
        return None
    if read_options(dataset_kwargs).pad_to_max_length:
        return None
    return f"lacks pad_to_max_length with cuda_graph_impl={model__cuda_graph_impl}"


@train_rule(
    "V100",
    why="only prompts with answers and conversations have epochs of a known size, and other loaders have none",
    fix="Set train.train_iters instead, or a dataset for fine-tuning with dataloader_type=batch or single.",
    fails={"num_epochs": 3.0},
    passes={"dataset__made_up": False, "dataset__dataloader_type": "batch"},
)
def _endless_data(num_epochs, dataset__made_up, dataset__dataloader_type):
    if num_epochs is None:
        return None
    if dataset__made_up is None:
        return f"is {num_epochs:g} without fine-tuning data"
    return (
        None
        if dataset__dataloader_type in ("batch", "single")
        else f"is {num_epochs:g} with dataloader_type={dataset__dataloader_type}"
    )


@dataset_rule(
    "D83",
    why=f"batches are then padded to a multiple of {QUANTIZED_BLOCK} tokens on each context-parallel rank, and the "
    "longest would exceed seq_length",
    fix=f"Set dataset.seq_length and model.seq_length to a multiple of {QUANTIZED_BLOCK} times "
    "model.context_parallel_size, or disable FP8 and FP4.",
    fails={"seq_length": 1000, "model__fp8": "hybrid", "made_up": False},
    passes={"seq_length": 1024},
)
def _partial_blocks(
    seq_length, model__fp8, model__fp4, packed_sequence_specs, made_up, model__context_parallel_size
):
    few_bits = f"fp8={model__fp8}" if model__fp8 else f"fp4={model__fp4}"
    ranks = model__context_parallel_size or 1
    fine = (
        made_up is None
        or packed_sequence_specs is not None
        or not (model__fp8 or model__fp4)
        or not seq_length
        or seq_length % (ranks * QUANTIZED_BLOCK) == 0
    )
    on_ranks = "" if ranks == 1 else f" and context_parallel_size={ranks}"
    return None if fine else f"is {seq_length} with {few_bits}{on_ranks}"


@dataset_rule(
    "D103",
    why="the longest batch is padded to it and must not exceed seq_length; packs are padded to their full length",
    fix="Set dataset.seq_length to a multiple; with packs, set packed_sequence_specs.pad_seq_to_mult instead.",
    fails={"dataset_kwargs": {"pad_seq_length_to_mult": 16}, "made_up": False, "seq_length": 1000},
    passes={"seq_length": 1024},
)
def _wrong_multiple(dataset_kwargs, made_up, seq_length, packed_sequence_specs):
    if made_up is None or _bad_options.test(dataset_kwargs, made_up):
        return None
    multiple = read_options(dataset_kwargs).pad_seq_length_to_mult
    if multiple == 1 or (packed_sequence_specs is None and (not seq_length or seq_length % multiple == 0)):
        return None
    return f"has pad_seq_length_to_mult={multiple} with " + (
        "packed_sequence_specs" if packed_sequence_specs is not None else f"seq_length={seq_length}"
    )


@dataset_rule(
    "D114",
    why="the specs have the length of a pack, and samples are packed where there are specs",
    fix="Set dataset.packed_sequence_specs (offline_packing_specs) together with enable_offline_packing=true, or "
    "neither of them: packed_sequence_specs=null with false.",
    fails={"enable_offline_packing": True, "made_up": False},
    passes={"packed_sequence_specs": {"packed_sequence_size": 1024}},
)
def _packing_contradicts_switch(enable_offline_packing, packed_sequence_specs, made_up):
    if made_up is None or enable_offline_packing in (None, packed_sequence_specs is not None):
        return None
    return f"is {str(enable_offline_packing).lower()} " + (
        "without packed_sequence_specs" if enable_offline_packing else "with packed_sequence_specs"
    )


@dataset_rule(
    "D105",
    why="the samples of existing packs are not in the order of a file",
    fix="Leave dataset.max_train_samples unset, or packed_train_data_path.",
    fails={"packed_sequence_specs": {"packed_train_data_path": "packs.npy"}, "max_train_samples": 8},
    passes={"max_train_samples": None},
)
def _limited_samples_of_packs(packed_sequence_specs, max_train_samples):
    return (
        f"has packed_train_data_path with max_train_samples={max_train_samples}"
        if max_train_samples is not None
        and get_spec(packed_sequence_specs, "packed_train_data_path") is not None
        else None
    )


@dataset_rule(
    "D80",
    why="an external loader yields finished batches, but this dataset yields samples by index",
    fix="Use dataset.dataloader_type=batch, single or cyclic.",
    fails={"dataloader_type": "external", "made_up": False},
    passes={"dataloader_type": "batch"},
)
def _external_loader_of_answers(dataloader_type, made_up):
    return (
        "is external for prompts with answers"
        if made_up is not None and dataloader_type == "external"
        else None
    )


@model_rule(
    "D82",
    why="every micro-batch then has the same weight in a step, so that the weight of an answer depends on the "
    "number of other tokens in its micro-batch",
    fix="Set model.calculate_per_token_loss=true to give each token in the loss the same weight.",
    fails={"calculate_per_token_loss": False, "dataset__made_up": False},
    passes={"calculate_per_token_loss": True},
    severity="warning",
)
def _samples_weighted_by_micro_batch(calculate_per_token_loss, dataset__made_up):
    return (
        "is false with samples that differ"
        if dataset__made_up is not None and calculate_per_token_loss is False
        else None
    )


@train_rule(
    "D106",
    why="the number of steps follows from the number of training samples",
    fix="Correct the data, or set train.train_iters instead.",
    fails={"num_epochs": 3.0, "training_samples_error": "training.jsonl: line 1 is not JSON."},
    passes={"training_samples_error": None},
)
def _length_of_unreadable_data(num_epochs, *, training_samples_error):
    return (
        None
        if num_epochs is None or training_samples_error is None
        else f"has no length ({training_samples_error.rstrip('.')})"
    )


RULES: tuple[Rule, ...] = (
    *rules_in(globals()),
    requires(
        "D74",
        {_PACKS: SET},
        {"validation.eval_micro_batch_size": among(None, 1)},
        why="a micro-batch is a single pack, also in evaluation",
        fix="Set validation.eval_micro_batch_size=1, or leave it unset.",
        fails={
            "dataset.packed_sequence_specs": {"packed_sequence_size": 4096},
            "validation.eval_micro_batch_size": 4,
        },
        passes={"validation.eval_micro_batch_size": 1},
        implied_by="V139",
    ),
    excludes(
        "D72",
        {"dataset.dataloader_type": "batch", "dataset.drop_last": among(False)},
        why="a step consumes a complete global batch, and an incomplete one is dropped",
        fix="Set dataset.drop_last=true, or dataset.dataloader_type=single.",
        fails={"dataset.drop_last": False},
    ),
    in_range(
        "D77",
        "dataset.memmap_workers",
        1,
        why="tokenization needs at least one process",
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
)
"""All rules for fine-tuning data and complete global batches."""
