"""Flags of Megatron-LM in the table of mb-plan, compared with the installed argument parser.

`MB_RECORD_GOLDENS=1` records the table again after an update of Megatron Core. The use of a flag is kept; one that is
new fails the test until it is given one by hand.
"""

import argparse
import dataclasses
import json
import os
from pathlib import Path

import pytest
from megatron.training.argument_utils import core_transformer_config_from_args
from megatron.training.arguments import add_megatron_arguments
from megatron.training.training import get_megatron_optimizer_config
from megatron_lm_command_lines import command_line
from test_megatron_flags import SEEDS, add_action, megatron_arguments, padded_vocabulary, plain

import mb_plan.megatron_lm
from mb_config.container.yaml_file import dump_yaml
from mb_config.megatron_lm.conversion import convert
from mb_config.megatron_lm.flag_table import parse_flags
from mb_config.preflight.facts import TargetMachine
from mb_config.preflight.run import preflight
from mb_plan import PlanError, best_layouts, describe_run, make_plan, predict, read_command_line, read_shape
from mb_plan.shape.sources import embedding_rows, read_file
from mb_trainer.config import ConfigContainer
from mb_trainer.requests import embedding_rows as embedding_rows_of_run
from mb_trainer.run.preflight import all_checks, target_facts

TABLE = Path(mb_plan.megatron_lm.__file__).parent / "flags.json"
PARSED = {
    "used": ("options", "type", "nargs", "choices", "default"),
    "not_distinguished": ("options", "nargs"),
    "no_effect": ("options", "nargs"),
    "not_planned": ("options", "nargs"),
}
"""Use of a flag to what of it is in the table: values of flags that are not used are not interpreted."""


def installed_flags():
    """Return the arguments of the installed parser by name, in its order."""
    parser = add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))
    rows = {}
    for action in parser._actions:
        if action.dest != "help":
            add_action(rows.setdefault(action.dest, {"options": {}}), action)
    return rows


def test_the_table_has_each_flag_of_the_installed_parser_with_its_use():
    rows = installed_flags()
    found = json.loads(TABLE.read_text())
    use = {dest: use for use, flags in found.items() for dest in flags}
    assert use.keys() == rows.keys()
    assert sum(map(len, found.values())) == len(rows)
    expected = {
        each: {
            dest: {name: row[name] for name in names if row.get(name) not in (None, "")}
            for dest, row in rows.items()
            if use[dest] == each
        }
        for each, names in PARSED.items()
    }
    if os.environ.get("MB_RECORD_GOLDENS"):
        sections = [
            f'"{each}": {{\n'
            + ",\n".join(f" {json.dumps(dest)}: {json.dumps(row)}" for dest, row in flags.items())
            + "\n}"
            for each, flags in expected.items()
        ]
        TABLE.write_text("{\n" + ",\n".join(sections) + "\n}\n")
        found = json.loads(TABLE.read_text())
    assert found == expected


@pytest.mark.parametrize("seed", SEEDS)
def test_fields_of_a_command_line_are_those_that_megatron_builds(seed, monkeypatch):
    """Values of Megatron-LM are those of its own parser, validation and builders, which run here."""
    words = command_line(seed).split()
    try:
        args = megatron_arguments(words, monkeypatch, world_size=8)
        theirs = core_transformer_config_from_args(args)
    except (AssertionError, ValueError) as error:
        pytest.skip(f"Megatron-LM rejects it: {error}"[:200])
    source = read_command_line(words)
    ours = {**source.model, "vocab_size": embedding_rows(source.sections)}
    built = {
        item.name: getattr(theirs, item.name) for item in dataclasses.fields(theirs) if item.name in ours
    }
    assert len(built) > 50
    given = {name for name in built if ours[name] is not None}
    assert {name: plain(built[name]) for name in given} == {name: plain(ours[name]) for name in given}
    if isinstance(ours["moe_layer_freq"], list) and len(ours["moe_layer_freq"]) != ours["num_layers"]:
        pytest.skip("Megatron rejects it when it builds the layers")
    assert read_shape({**ours, **built}) == read_shape(ours)  # with what Megatron completes
    assert embedding_rows(source.sections) == padded_vocabulary(args)
    optimizer, _ = get_megatron_optimizer_config(args)
    found = source.sections["optimizer"]
    assert {name: str(getattr(optimizer, name)).removeprefix("torch.") for name in found} == {
        name: str(value) for name, value in found.items()
    }
    ddp = source.sections["ddp"]
    assert (ddp["grad_reduce_in_fp32"], ddp["use_distributed_optimizer"]) == (
        args.accumulate_allreduce_grads_in_fp32,
        args.use_distributed_optimizer,
    )
    run = describe_run(source, gpus="8xh100")
    train = run.sections(run.layout)["train"]
    assert (train["global_batch_size"], train["micro_batch_size"]) == (
        args.global_batch_size,
        args.micro_batch_size,
    )
    assert train["train_iters"] == (args.train_iters or args.train_samples // args.global_batch_size)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_command_line_is_planned_as_the_run_that_it_is_converted_to(seed, monkeypatch, tmp_path):
    """By the program from the converted file, and from the configuration that the trainer makes of it."""
    words = command_line(seed).split()
    try:
        megatron_arguments(words, monkeypatch, world_size=8)
    except (AssertionError, ValueError) as error:
        pytest.skip(f"Megatron-LM rejects it: {error}"[:200])
    file = tmp_path / "run.yaml"
    file.write_text(dump_yaml(convert(parse_flags(words)).nested()))
    config = ConfigContainer.from_yaml(file)
    target = TargetMachine(world_size=8, gpu="h100", transformer_engine="2.8", apex=True)
    result = preflight(config, all_checks(), facts=target_facts(target, config.env_vars), provenance=None)
    if result.errors:
        pytest.skip(f"the trainer rejects it: {result.errors[0]}"[:200])
    direct, converted = (
        best_layouts(describe_run(source, gpus="8xh100"))[0]
        for source in (read_command_line(words), read_file(file))
    )
    sections = vars(config)
    plan = make_plan(sections, world_size=8, vocab_size=embedding_rows_of_run(config))
    assert direct.plan.to_dict() == converted.plan.to_dict() == plan.to_dict()
    assert direct.unpredicted == converted.unpredicted
    if direct.prediction is None:
        with pytest.raises(PlanError, match="float32 is not modelled"):
            predict(sections, plan, gpu="h100")
        return
    assert direct.prediction.to_dict() == converted.prediction.to_dict()
    trained = predict(sections, plan, gpu="h100")
    assert (direct.prediction.step_seconds, direct.prediction.mfu) == (trained.step_seconds, trained.mfu)
    if config.train.rampup_batch_size is None:
        assert direct.prediction.days == trained.days
