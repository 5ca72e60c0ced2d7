"""Recipes: each passes every rule on its intended machines; published models have their published sizes."""

import sysconfig
from functools import cache
from pathlib import Path

import pytest

from mb_config import Provenance
from mb_config.cli.examination import CommandInput
from mb_config.preflight.facts import TargetMachine
from mb_config.preflight.run import preflight
from mb_models import GPTModelConfig, hybrid_parameter_count, parameter_count, t5_parameter_count
from mb_models.hf.config_json import config_of
from mb_plan import make_plan
from mb_plan.memory.gpu_memory import GPU_MEMORY
from mb_trainer.recipes import RECIPES
from mb_trainer.recipes.lora import folder_of
from mb_trainer.requests import examine_request
from mb_trainer.run.preflight import CHECKS, target_facts

PUBLISHED = {
    "llama31_8b": 8_030_261_248,
    "llama31_70b": 70_553_706_496,
    "qwen3_8b": 8_190_735_360,
    "mixtral_8x7b": 46_702_792_704,
    "deepseek_v3": 671_026_419_200 - 58 * 256,
    "llama31_405b": 405_853_388_800,
    "llama32_1b": 1_235_814_400,
    "qwen3_0_6b": 596_049_920,
    "qwen3_1_7b": 1_720_574_976,
    "qwen3_30b_a3b": 30_532_122_624,
    "qwen3_235b_a22b": 235_093_634_560,
    "gemma_2b": 2_506_172_416,
    "gemma2_2b": 2_614_341_888,
    "gemma2_9b": 9_241_705_984,
    "gemma3_1b": 999_885_952,
    "gpt_oss_20b": 20_914_757_184,
    "gpt_350m": 354_823_168 + 47 * 1024,
    "moe_1b": 1_334_628_352,
}
"""Parameters of the published checkpoints. DeepSeek-V3 is counted without its MTP layer and without the biases of the
routers, which are not trained by gradients and which Megatron Core does not count as parameters; gpt_350m with 47 rows
of padding.
"""

HYBRIDS = {"hybrid_8b": 8_654_517_248, "hybrid_1b": 885_211_392, "nemotron_h_8b": 8_100_852_736}
"""Parameters of the hybrids; nemotron_h_8b has the shape of the published checkpoint."""
ONE_PROCESS = TargetMachine(world_size=1)


@pytest.mark.parametrize("settings", [[], ["perf=h100"]], ids=["as it is", "perf"])
@pytest.mark.parametrize("name", [*PUBLISHED, *HYBRIDS])
def test_a_recipe_fits_its_gpus(name, settings):
    processes = RECIPES[name].processes
    target = TargetMachine(world_size=processes, gpu="h100", transformer_engine="2.20", apex=True)
    found = examine_request(CommandInput(arguments=[name, *settings]), target=target)
    plan = make_plan(found.request.config.sections(), world_size=processes)
    assert 0 < plan.needed_bytes < GPU_MEMORY["h100"].size


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("name", HYBRIDS)
def test_hybrids_pass_every_rule_at_their_world_size_and_twice_that(name, times):
    target = TargetMachine(world_size=times * RECIPES[name].processes, gpu="h100", transformer_engine="2.20")
    assert [
        str(problem)
        for problem in examine_request(CommandInput(arguments=[name]), target=target).result.problems
    ] == []


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_model_passes_every_rule_at_its_world_size_and_twice_that(name, times):
    target = TargetMachine(world_size=times * RECIPES[name].processes, gpu="h100", transformer_engine="2.20")
    findings = examine_request(CommandInput(arguments=[name]), target=target).result
    assert [str(problem) for problem in findings.problems] == []


@pytest.mark.parametrize(
    ("name", "accepted", "rejected"), [("llama31_405b", 8192, 16384), ("deepseek_v3", 2048, 4096)]
)
def test_the_largest_world_size_that_a_summary_names_is_the_largest_that_fills_its_batch(
    name, accepted, rejected
):
    assert f"{accepted:,} GPUs" in RECIPES[name].summary
    found = {}
    for size in (accepted, rejected):
        target = TargetMachine(world_size=size, gpu="h100", transformer_engine="2.20")
        problems = examine_request(CommandInput(arguments=[name]), target=target).result.problems
        found[size] = any("train.global_batch_size: " in str(problem) for problem in problems)
    assert found == {accepted: False, rejected: True}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_model_has_its_published_size(name):
    config = RECIPES[name].build()
    config.model.mtp_num_layers = config.model.pipeline_model_parallel_layout = None
    config.model.pipeline_model_parallel_size, config.model.virtual_pipeline_model_parallel_size = 1, None
    plan = make_plan(config.sections(), world_size=RECIPES[name].processes)
    assert (parameter_count(config.model), plan.parameters) == (PUBLISHED[name], PUBLISHED[name])


FAMILY_OF = {"gemma_2b": "gemma", "gemma2_2b": "gemma2", "gemma2_9b": "gemma2", "gemma3_1b": "gemma3_text"}


@pytest.mark.parametrize("name", FAMILY_OF)
def test_a_gemma_computes_what_its_published_weights_need(name):
    model = RECIPES[name].build().model
    assert config_of(model, vocab_size=model.vocab_size, dtype="bfloat16")["model_type"] == FAMILY_OF[name]


@pytest.mark.parametrize(
    "name", (name for name in RECIPES if type(RECIPES[name].build().model) is GPTModelConfig)
)
def test_both_ways_to_count_agree(name):
    config = RECIPES[name].build()
    plan = make_plan(config.sections(), world_size=RECIPES[name].processes, vocab_size=151_936)
    rows = config.model.vocab_size or 151_936
    assert parameter_count(config.model, vocab_size=rows) == plan.parameters


@pytest.mark.parametrize("times", [1, 2])
def test_t5_base_passes_every_rule_at_its_world_size_and_twice_that(times):
    target = TargetMachine(
        world_size=times * RECIPES["t5_base"].processes, gpu="h100", transformer_engine="2.20"
    )
    findings = examine_request(CommandInput(arguments=["t5_base"]), target=target).result
    assert [str(problem) for problem in findings.problems] == []


def test_t5_base_has_the_published_size_but_for_positions_and_the_bias_of_its_output():
    model = RECIPES["t5_base"].build().model
    published, relative_positions, output_bias = 222_903_552, 2 * 32 * 12, 32_128
    size = published - relative_positions + output_bias
    assert t5_parameter_count(model, vocab_size=32_128) == size
    assert make_plan({"model": model}, vocab_size=32_128).parameters == size


@pytest.mark.parametrize(("name", "size"), [*HYBRIDS.items(), ("hybrid_tiny", 2_934_284)])
def test_both_ways_to_count_a_hybrid_agree(name, size):
    config = RECIPES[name].build()
    plan = make_plan(config.sections(), vocab_size=4096)
    rows = config.model.vocab_size or 4096
    assert (hybrid_parameter_count(config.model, vocab_size=rows), plan.parameters) == (size, size)


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (["t5_tiny", "model.pipeline_model_parallel_size=2"], "TF02"),
        (["t5_tiny", "model.decoder_seq_length=40"], "T31"),
        (["t5_tiny", "dataset.decoder_seq_length=28", "model.decoder_seq_length=28"], "D52"),
        (["t5_tiny", "tokenizer.vocab_extra_ids=6"], "D53"),
    ],
)
def test_what_a_t5_cannot_do_is_refused_before_it_is_built(words, rule):
    findings = examine_request(CommandInput(arguments=words), target=TargetMachine(world_size=2)).result
    assert rule in [problem.id for problem in findings.errors]


def test_a_further_token_of_deepseek_is_a_layer_with_experts():
    config = RECIPES["deepseek_v3"].build()
    assert parameter_count(config.model) - PUBLISHED["deepseek_v3"] == 11_610_067_968


def test_overlap_of_llama_70b_is_wired():
    config = RECIPES["llama31_70b"].build()
    config.comm_overlap.data_parallel_size = 2
    config.comm_overlap.setup(config.model, config.optimizer, config.ddp, transformer_engine=True)
    assert config.model.tp_comm_overlap_cfg["proj_fprop"]["num_splits"] == 4
    assert (config.model.tp_comm_overlap, config.model.overlap_p2p_comm) == (True, True)
    assert (config.ddp.overlap_grad_reduce, config.optimizer.overlap_param_gather) == (True, True)


def test_adapters_learn_from_text_that_their_base_has_not_seen():
    (folder,) = map(Path, RECIPES["lora_tiny"].build().dataset.sources)
    assert folder.is_dir()
    assert not folder.is_relative_to(Path(sysconfig.get_path("stdlib"))) or "site-packages" in folder.parts
    with pytest.raises(ModuleNotFoundError, match="no_such_package: is not an installed package"):
        folder_of("no_such_package")


def test_a_recipe_that_python_hands_on_takes_another_precision():
    config = RECIPES["lora_tiny"].build()
    config.mixed_precision = "bf16_mixed"
    findings = preflight(config, CHECKS, facts=target_facts(ONE_PROCESS), provenance=Provenance.of(config))
    assert "V017" not in [problem.id for problem in findings.problems]


@cache
def problems_without_fast_settings(name, target):
    found = examine_request(CommandInput(arguments=[name]), target=target).result
    return {each.id for each in found.problems}


@pytest.mark.parametrize("gpu", ["a100", "h100", "h100_fp8", "b200", "b200_nvfp4", "gb200_fp8", "l40s"])
def test_fast_settings_of_a_recipe_pass_every_rule_that_the_recipe_passes(gpu):
    short = gpu.partition("_")[0]
    for name, recipe in RECIPES.items():
        target = TargetMachine(
            world_size=recipe.processes or 1, gpu=short, transformer_engine="2.20", apex=True
        )
        before = problems_without_fast_settings(name, target)
        found = examine_request(CommandInput(arguments=[name, f"perf={gpu}"]), target=target).result
        assert {each.id for each in found.problems} <= before, name
        assert any(change.rule == f"perf={gpu}" for change in found.changes), name


def test_this_machine_without_a_gpu_is_checked_as_the_one_that_the_fast_settings_name():
    found = examine_request(
        CommandInput(arguments=["llama31_8b", "perf=h100"]), target=TargetMachine(world_size=8)
    )
    assert (found.target.gpu, found.facts["gpu"]) == ("h100", "h100")
