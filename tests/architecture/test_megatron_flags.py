"""Flags of Megatron-LM: the table of mb-config compared with the installed argument parser and with the sections.

`MB_RECORD_GOLDENS=1` records the table again after an update of Megatron Core.
"""

import argparse
import dataclasses
import json
import os
from pathlib import Path

import pytest
import torch
from megatron_lm_command_lines import command_line

import mb_host

mb_host.install()

import megatron.training.training  # noqa: E402
from megatron.core.num_microbatches_calculator import (  # noqa: E402
    destroy_num_microbatches_calculator,
    init_num_microbatches_calculator,
)
from megatron.core.transformer import MLATransformerConfig  # noqa: E402
from megatron.training.argument_utils import core_transformer_config_from_args  # noqa: E402
from megatron.training.arguments import add_megatron_arguments, parse_args, validate_args  # noqa: E402
from megatron.training.training import get_megatron_optimizer_config  # noqa: E402

import mb_config.megatron_lm  # noqa: E402
from mb_config import from_megatron_args, scheduler_steps  # noqa: E402
from mb_config.container.yaml_file import dump_yaml  # noqa: E402
from mb_config.mcore import build_scheduler, to_megatron  # noqa: E402
from mb_config.megatron_lm.conversion import convert  # noqa: E402
from mb_config.megatron_lm.differences import differences as script_differences  # noqa: E402
from mb_config.megatron_lm.flag_table import (  # noqa: E402
    Arguments,
    flag_table,
    parse_flags,
    read_flags,
)
from mb_config.megatron_lm.no_counterpart import GROUPS, NO_EFFECT  # noqa: E402
from mb_config.megatron_lm.script import read_words  # noqa: E402
from mb_config.megatron_lm.section_conversions import CONVERSIONS, is_converted  # noqa: E402
from mb_config.preflight.facts import TargetMachine  # noqa: E402
from mb_config.preflight.run import preflight  # noqa: E402
from mb_models.gpt.transformer import transformer_config  # noqa: E402
from mb_trainer.config import ConfigContainer, GPTDatasetConfig, GPTModelConfig  # noqa: E402
from mb_trainer.requests import embedding_rows  # noqa: E402
from mb_trainer.run.preflight import all_checks, target_facts  # noqa: E402

DEFAULTS = Path(mb_config.megatron_lm.__file__).parent / "section_defaults.json"
SIZES = {"seq_length": 8, "data_path": ["a"], "num_layers": 8}
CALLS = (
    SIZES,
    {**SIZES, "bf16": True, "swiglu": True, "num_experts": 2, "use_rope_scaling": True, "spec": ["local"]},
    {**SIZES, "fp16": True, "quick_geglu": True, "recompute_activations": True, "use_flash_attn": True},
    {**SIZES, "pipeline_model_parallel_size": 2, "num_layers_per_virtual_pipeline_stage": 2},
    {**SIZES, "decoder_first_pipeline_num_layers": 2, "decoder_last_pipeline_num_layers": 2},
    {
        **SIZES,
        "rotary_seq_len_interpolation_factor": 2,
        "context_parallel_size": 2,
        "attention_backend": "fused",
    },
    {**SIZES, **{f"ddp_{name}": 1 for name in ("num_buckets", "bucket_size", "average_in_collective")}},
    {**SIZES, "ddp_pad_buckets_for_high_nccl_busbw": True, "dist_ckpt_format_deprecated": "torch_dist"},
    {**SIZES, "multi_latent_attention": True},
    {**SIZES, "enable_ft_package": True, "log_straggler": True, "profile": True},
    {"seq_length": 8, "train_data_path": ["a"]},
    {**SIZES, "hidden_size": 8, "swiglu": True, "cuda_graph_impl": "local"},
    {**SIZES, "cuda_graph_impl": "local", "cuda_graph_modules": ["attn", "full_iteration_inference"]},
)
"""Arguments with which the conversions yield every path."""

SCRIPTS = Path(__file__).parents[2] / "packages/mb-config/tests/megatron_scripts"
VARIABLES = {"CHECKPOINT_PATH": "checkpoints", "DATA_PATH": "text_document"}
TABLE = Path(mb_config.megatron_lm.__file__).parent / "flags.json"

SECTIONS = ("model", "train", "validation", "optimizer", "scheduler", "ddp", "dataset", "tokenizer", "logger")
SECTIONS += ("checkpoint", "rng", "dist", "rerun_state_machine", "profiling", "ft", "straggler")
"""Sections in the order in which a field of the same name is looked for."""

TRAINING = {"model", "train", "validation", "optimizer", "scheduler", "ddp", "dataset"}
"""Sections whose defaults change the training: those of Megatron-LM are written where they differ."""

SAME = {"cuda_graph_modules", "muon_momentum", "barrier_with_L1_time", "align_param_gather"}
"""Arguments whose default of another form has the same effect, or has none unless a flag is given."""

CHOSEN = {
    "eval_iters": "validation.eval_iters",
    "eval_interval": "validation.eval_interval",
    "skip_train": "validation.skip_train",
    "full_validation": "validation.full_validation",
    "multiple_validation_sets": "validation.multiple_validation_sets",
    "vocab_size": "tokenizer.vocab_size",
    "trust_remote_code": "tokenizer.trust_remote_code",
    "use_megatron_fsdp": "ddp.use_megatron_fsdp",
    "overlap_grad_reduce": "ddp.overlap_grad_reduce",
    "align_param_gather": "ddp.align_param_gather",
    "context_parallel_size": "model.context_parallel_size",
    "profile_step_start": "profiling.profile_step_start",
}
"""Path of arguments whose name is that of fields in several sections."""


def section_class(name):
    """Return the class of a section of a run that pretrains a GPT."""
    known = {"model": GPTModelConfig, "dataset": GPTDatasetConfig}
    if name in known:
        return known[name]
    hints = __import__("typing").get_type_hints(ConfigContainer)
    hint = hints[name]
    options = getattr(hint, "__args__", (hint,))
    return next(option for option in options if dataclasses.is_dataclass(option))


FIELDS = {name: {item.name: item for item in dataclasses.fields(section_class(name))} for name in SECTIONS}
TRANSFORMER = {item.name: item for item in dataclasses.fields(MLATransformerConfig)}


def path_of(dest):
    """Return the field that an argument sets directly; empty if there is none."""
    if is_converted(dest):
        return ""
    if dest in CHOSEN:
        return CHOSEN[dest]
    section = next((name for name in SECTIONS if dest in FIELDS[name]), None)
    if section is not None:
        return f"{section}.{dest}"
    return f"model.transformer.{dest}" if dest in TRANSFORMER else ""


def default_of(path):
    """Return the default of a field."""
    section, _, name = path.partition(".")
    item = (
        TRANSFORMER[name.removeprefix("transformer.")]
        if name.startswith("transformer.")
        else FIELDS[section][name]
    )
    return item.default_factory() if item.default_factory is not dataclasses.MISSING else item.default


def recorded_rows():
    """Return the table as the installed parser has it."""
    parser = add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))
    rows = {}
    for action in parser._actions:
        if action.dest != "help":
            add_action(rows.setdefault(action.dest, {"group": action.container.title, "options": {}}), action)
    for dest, row in rows.items():
        row["path"] = path_of(dest)
        ours = default_of(row["path"]) if row["path"] else None
        theirs = row.get("default")
        if (
            row["path"].split(".")[0] in TRAINING
            and dest not in SAME
            and theirs is not None
            and plain(ours) != theirs
        ):
            row["write_default"] = True
    return {
        dest: {name: value for name, value in row.items() if value not in ("", None)}
        for dest, row in rows.items()
    }


def add_action(row, action):
    """Add what an action of argparse accepts to the row of its argument."""
    kind = {"_StoreTrueAction": "true", "_StoreFalseAction": "false"}.get(type(action).__name__, "value")
    for option in action.option_strings:
        negated = type(action).__name__ == "BooleanOptionalAction"
        row["options"][option] = ("false" if option.startswith("--no-") else "true") if negated else kind
    if kind == "value" and type(action).__name__ != "BooleanOptionalAction":
        row["type"] = getattr(action.type, "__name__", "str")
        row["nargs"] = action.nargs
        if action.choices:
            row["choices"] = [getattr(choice, "name", choice) for choice in action.choices]
    if row.get("default") is None:
        row["default"] = plain(action.default)


def plain(value):
    """Return a value as JSON stores it."""
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else getattr(value, "name", str(value))


def test_the_table_equals_the_installed_parser():
    rows = recorded_rows()
    if os.environ.get("MB_RECORD_GOLDENS"):
        lines = [f" {json.dumps(dest)}: {json.dumps(row)}" for dest, row in rows.items()]
        TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        flag_table.cache_clear()
    found = json.loads(TABLE.read_text())
    assert {dest: row for dest, row in found.items() if rows.get(dest) != row} == {}
    assert found.keys() == rows.keys()


def test_the_defaults_of_converted_fields_are_those_of_the_sections():
    """Every path that a conversion yields is a field; its default is recorded, so that equal values are left out."""
    paths = {path for given in CALLS for function in CONVERSIONS for path, _ in function(Arguments(given))}
    found = {path: default_of(path) for path in sorted(paths) if not path.endswith("._target_")}
    ours = {path: plain(value) for path, value in found.items() if value is not dataclasses.MISSING}
    if os.environ.get("MB_RECORD_GOLDENS"):
        DEFAULTS.write_text(json.dumps(ours, indent=1) + "\n")
    assert json.loads(DEFAULTS.read_text()) == ours


UNUSED = {
    "tensor_parallel_num_weight_shards",
    "expert_tensor_parallel_num_weight_shards",
    "use_cpu_initialization",
    "inference_sampling_seed",
    "cp_comm_type",
    *("init_method", "output_layer_init_method", "embedding_init_method"),
}
"""Fields without effect in these runs, or functions, which are never equal: `init_method_std` is compared."""

UNUSED_BY_OPTIMIZER = {"fp8_recipe", "muon_momentum", "optimizer_offload_fraction", "barrier_with_L1_time"}
"""Fields without effect on Adam without offload and without timers."""

WITHOUT_KERNELS = ["--no-rope-fusion", "--no-gradient-accumulation-fusion"]
"""Flags with which Megatron accepts the scripts without Transformer Engine and Apex."""


@pytest.mark.parametrize("script", ["gpt.sh", "moe.sh", "mla.txt"])
def test_converted_scripts_give_the_objects_that_megatron_builds(script, monkeypatch, tmp_path):
    text = (SCRIPTS / script).read_text()
    words = [*read_words(text, variables=VARIABLES).words, *WITHOUT_KERNELS]
    args = megatron_arguments(words, monkeypatch)
    config = settled_configuration(words, tmp_path)
    theirs = core_transformer_config_from_args(args)
    ours = transformer_config(config.model, device=torch.device("cuda"))
    assert type(ours) is type(theirs)
    assert differences(ours, theirs) - UNUSED == set()
    optimizer, _ = get_megatron_optimizer_config(args)
    assert differences(to_megatron(config.optimizer), optimizer) - UNUSED_BY_OPTIMIZER == set()
    assert (config.ddp.grad_reduce_in_fp32, config.ddp.overlap_grad_reduce) == (
        args.accumulate_allreduce_grads_in_fp32,
        args.overlap_grad_reduce,
    )


SEEDS = range(int(os.environ.get("MB_EXAMPLES", "60")))
"""MB_EXAMPLES=1000 draws more command lines."""

SCHEDULE = (
    *(
        "init_lr",
        "max_lr",
        "min_lr",
        "lr_warmup_steps",
        "lr_decay_steps",
        "lr_decay_style",
        "start_wd",
        "end_wd",
    ),
    *("wd_incr_steps", "wd_incr_style", "override_opt_param_scheduler", "use_checkpoint_opt_param_scheduler"),
)
WSD = ("wsd_decay_steps", "lr_wsd_decay_style")
SAME_EFFECT = {"use_te_rng_tracker"}
"""Fields that only the trainer sets: Megatron-LM passes the argument `te_rng_tracker` on instead."""


@dataclasses.dataclass
class Groups:
    """An optimizer without parameters."""

    param_groups: list = dataclasses.field(default_factory=lambda: [{"params": []}])


@pytest.mark.parametrize("seed", SEEDS)
def test_a_command_line_becomes_the_run_that_megatron_builds_from_it(seed, monkeypatch, tmp_path):
    """Values of Megatron-LM are those of its own parser, validation and builders, which run here."""
    words = command_line(seed).split()
    try:
        args = megatron_arguments(words, monkeypatch, world_size=8)
        theirs = core_transformer_config_from_args(args)
        schedule = megatron_schedule(args, monkeypatch)
    except (AssertionError, ValueError) as error:
        pytest.skip(f"Megatron-LM rejects it: {error}"[:200])
    file = tmp_path / "run.yaml"
    file.write_text(dump_yaml(convert(parse_flags(words)).nested()))
    config = ConfigContainer.from_yaml(file)
    target = TargetMachine(world_size=8, gpu="h100", transformer_engine="2.8", apex=True)
    result = preflight(config, all_checks(), facts=target_facts(target, config.env_vars), provenance=None)
    if result.errors:  # a rule on the model, or OP08; the conversion itself must be complete
        sections = {problem.fields[0].partition(".")[0] for problem in result.errors if problem.id != "OP08"}
        assert sections <= {"model"}, result.errors
        pytest.skip(f"the trainer rejects it: {result.errors[0]}"[:200])
    ours = transformer_config(config.model, device=torch.device("cuda"))
    assert type(ours) is type(theirs)
    assert differences(ours, theirs) - UNUSED - SAME_EFFECT == set()
    optimizer, _ = get_megatron_optimizer_config(args)
    assert differences(to_megatron(config.optimizer), optimizer) - UNUSED_BY_OPTIMIZER == set()
    steps = scheduler_steps(config.train, config.scheduler, data_parallel_size=config.data_parallel_size)
    built = build_scheduler(
        Groups(), scheduler=config.scheduler, optimizer_config=config.optimizer, steps=steps
    )
    compared = SCHEDULE + (WSD if args.lr_decay_style == "WSD" else ())
    assert [getattr(built, name) for name in compared] == [getattr(schedule, name) for name in compared]
    model = config.model
    assert config.train.train_iters == (
        args.train_iters if args.rampup_batch_size is None else growing_steps(args)
    )
    assert (
        embedding_rows(config),
        model.max_position_embeddings or model.seq_length,
        model.share_embeddings_and_output_weights,
        model.position_embedding_type,
        model.rotary_base,
        model.rotary_percent,
        model.seq_len_interpolation_factor,
        (model.rope_scaling, model.rope_scaling_factor),
        (config.train.micro_batch_size, config.train.global_batch_size),
        (config.validation.eval_iters, config.validation.eval_interval),
        (config.ddp.grad_reduce_in_fp32, config.ddp.overlap_grad_reduce, config.ddp.overlap_param_gather),
        (config.ddp.check_for_nan_in_grad, config.rng.seed, config.rng.te_rng_tracker),
    ) == (
        padded_vocabulary(args),
        args.max_position_embeddings,
        not args.untie_embeddings_and_output_weights,
        args.position_embedding_type,
        args.rotary_base,
        args.rotary_percent,
        args.rotary_seq_len_interpolation_factor,
        (args.use_rope_scaling, args.rope_scaling_factor),
        (args.micro_batch_size, args.global_batch_size),
        (args.eval_iters, args.eval_interval),
        (args.accumulate_allreduce_grads_in_fp32, args.overlap_grad_reduce, args.overlap_param_gather),
        (args.check_for_nan_in_loss_and_grad, args.seed, args.te_rng_tracker),
    )


@pytest.mark.parametrize("seed", range(20))
def test_parsed_arguments_become_what_their_command_line_becomes(seed, monkeypatch):
    """The namespace is that of Megatron-LM's own parser, before it is validated and after."""
    words = command_line(seed).split()
    monkeypatch.setattr("sys.argv", ["pretrain_gpt.py", *words])
    monkeypatch.setenv("WORLD_SIZE", "8")
    parser = add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))
    at_default = {dest for dest, value in parse_flags(words).items() if value == read_flags()[dest].default}
    given = {dest: value for dest, value in parse_flags(words).items() if dest not in at_default}
    expected = convert(given)
    assert from_megatron_args(parser.parse_args(words)).nested() == expected.nested()
    assert from_megatron_args(parse_args()).nested() == expected.nested()
    try:
        args = megatron_arguments(words, monkeypatch, world_size=8)
    except (AssertionError, ValueError) as error:
        pytest.skip(f"Megatron-LM rejects it: {error}"[:200])
    validated = from_megatron_args(args).nested()
    for section in ("optimizer", "scheduler", "train", "dataset", "tokenizer"):
        assert {
            name: validated[section].get(name) for name in expected.nested()[section]
        } == expected.nested()[section]


@pytest.mark.parametrize("seed", range(20))
def test_what_megatron_lm_computes_is_no_difference(seed, monkeypatch):
    words = command_line(seed).split()
    try:
        args = megatron_arguments(words, monkeypatch, world_size=8)
    except (AssertionError, ValueError) as error:
        pytest.skip(f"Megatron-LM rejects it: {error}"[:200])
    found = script_differences(convert(parse_flags(words)), vars(args), name="x.sh")
    assert [*found] == []


@pytest.mark.parametrize(
    "flags",
    [
        "",
        "--hybrid-layer-pattern M*-M",
        "--decoder-seq-length 8 --encoder-num-layers 2 --vocab-extra-ids 100",
        "--fim-data",
    ],
)
def test_every_kind_of_model_and_data_is_a_section_of_the_trainer(flags, tmp_path):
    sizes = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 8 --data-path a"
    file = tmp_path / "run.yaml"
    file.write_text(dump_yaml(convert(parse_flags(f"{sizes} {flags}".split())).nested()))
    assert ConfigContainer.from_yaml(file).model.seq_length == 8


def megatron_schedule(args, monkeypatch):
    """Return the schedule that Megatron-LM builds, which also sets `args.train_iters`."""
    start_batch_sizes(args)
    try:
        monkeypatch.setattr(megatron.training.training, "get_args", lambda: args)
        return megatron.training.training.get_optimizer_param_scheduler(Groups())
    finally:
        destroy_num_microbatches_calculator()


def growing_steps(args):
    """Return the steps in `--train-samples` with the batch sizes that `--rampup-batch-size` documents.

    Megatron Core 0.19 takes the argument and ignores it; earlier releases let the batch grow by this formula.
    """
    first, increment, samples = map(int, args.rampup_batch_size)
    samples_each = samples / ((args.global_batch_size - first) // increment)

    def batch(consumed):
        grown = first + int(consumed / samples_each) * increment
        return args.global_batch_size if consumed > samples else grown

    steps = consumed = 0
    while consumed + batch(consumed) <= args.train_samples:
        consumed += batch(consumed)
        steps += 1
    return steps


def start_batch_sizes(args):
    init_num_microbatches_calculator(
        0,
        args.rampup_batch_size,
        args.global_batch_size,
        args.micro_batch_size,
        args.data_parallel_size,
        args.decrease_batch_size_if_needed,
    )


def padded_vocabulary(args):
    multiple = args.make_vocab_size_divisible_by * args.tensor_model_parallel_size
    return -(-args.vocab_size // multiple) * multiple


def megatron_arguments(words, monkeypatch, *, world_size=32):
    """Return the arguments as Megatron-LM parses and validates them, for processes on H100."""
    for name, value in {
        "RANK": 0,
        "WORLD_SIZE": world_size,
        "LOCAL_RANK": 0,
        "CUDA_DEVICE_MAX_CONNECTIONS": 1,
    }.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr("sys.argv", ["pretrain_gpt.py", *words])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    args = parse_args()
    validate_args(args)
    return args


def settled_configuration(words, folder):
    """Return the converted configuration after the checks of the trainer, for 32 processes on H100."""
    file = folder / "run.yaml"
    file.write_text(dump_yaml(convert(parse_flags(words)).nested()))
    config = ConfigContainer.from_yaml(file)
    target = TargetMachine(world_size=32, gpu="h100", transformer_engine="2.8", apex=True)
    result = preflight(config, all_checks(), facts=target_facts(target, config.env_vars), provenance=None)
    assert [str(problem) for problem in result.errors] == []
    return config


def differences(ours, theirs):
    """Return the names of the fields of two dataclasses whose values differ."""
    return {
        item.name
        for item in dataclasses.fields(theirs)
        if getattr(ours, item.name) != getattr(theirs, item.name)
    }


def test_conversions_and_reasons_name_arguments():
    flags = read_flags()
    named = {*NO_EFFECT, *(dest for dests in CONVERSIONS.values() for dest in dests)}
    assert named - flags.keys() == set()
    assert GROUPS.keys() - {flag.group for flag in flags.values()} == set()
