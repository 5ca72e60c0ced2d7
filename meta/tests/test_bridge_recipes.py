"""Recipes of Megatron-Bridge, as functions at the paths of its modules."""

import inspect
import json
from importlib import import_module

import pytest

from mb_config import ConfigReadError, Provenance, runtime_config_update
from mb_models.hf.families import FAMILIES
from mb_schema.rules import value_at
from mb_trainer.bridge.providers import GPTModelProvider, HybridModelProvider
from mb_trainer.bridge.recipe_bases import _sft_common
from mb_trainer.bridge.recipe_table import entries
from mb_trainer.bridge.recipes import llama, llama3_8b_peft_config, qwen
from mb_trainer.bridge.training.utils.omegaconf_utils import process_config_with_overrides
from mb_trainer.config import DoRA, LoRA

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
HYBRID = {
    "model_type": "nemotron_h",
    **dict.fromkeys(FAMILIES["nemotron_h"].hybrid.required, 8),
    "hybrid_override_pattern": "M*-E",
    "num_experts_per_tok": 2,
}
PUBLISHED = {
    "llama.h100.llama3:llama3_8b_pretrain_16gpu_h100_bf16_16k_config": {
        "model.tensor_model_parallel_size": 4,
        "model.pipeline_model_parallel_size": 2,
        "model.context_parallel_size": 2,
        "model.sequence_parallel": True,
        "model.seq_length": 16384,
        "dataset.seq_length": 16384,
    },
    "llama.llama3:llama3_8b_pretrain_config": {
        "model.context_parallel_size": 2,
        "model.num_layers": 32,
        "train.train_iters": 1168251,
        "train.global_batch_size": 512,
        "train.micro_batch_size": 1,
        "scheduler.lr_warmup_iters": 2000,
        "optimizer.lr": 3e-4,
        "optimizer.min_lr": 3e-5,
        "tokenizer.vocab_size": 32000,
    },
    "qwen:qwen3_30b_a3b_pretrain_config": {
        "model.expert_model_parallel_size": 16,
        "model.seq_length": 4096,
        "train.train_iters": 100,
        "train.global_batch_size": 1024,
        "scheduler.lr_warmup_iters": 40,
        "scheduler.start_weight_decay": 0.033,
        "optimizer.use_precision_aware_optimizer": True,
    },
    "gpt_oss:gpt_oss_20b_pretrain_config": {
        "model.tensor_model_parallel_size": 2,
        "model.pipeline_model_parallel_size": 4,
        "model.expert_model_parallel_size": 4,
        "train.train_iters": 1000000,
        "train.global_batch_size": 512,
    },
    "deepseek:deepseek_v2_lite_pretrain_config": {
        "model.expert_model_parallel_size": 8,
        "model.recompute_granularity": "full",
        "model.recompute_num_layers": 1,
        "scheduler.lr_warmup_iters": 2000,
    },
    "gemma:gemma2_2b_peft_config": {
        "train.train_iters": 100,
        "train.global_batch_size": 128,
        "optimizer.use_distributed_optimizer": False,
        "optimizer.adam_beta2": 0.95,
        "scheduler.max_lr": 1e-4,
        "model.seq_length": 2048,
    },
}
"""Module and recipe -> numbers in the source of Megatron-Bridge 0.6.2."""


@pytest.fixture(autouse=True)
def _models(tmp_path, monkeypatch):
    """Put a config.json where every recipe looks first: in a folder with the name of its model."""
    monkeypatch.chdir(tmp_path)
    for entry in entries().values():
        if "hf" in entry:
            folder = tmp_path / entry["hf"]
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "config.json").write_text(json.dumps(HYBRID if "Nemotron" in folder.name else LLAMA))


@pytest.mark.parametrize("path", PUBLISHED)
def test_a_recipe_has_the_numbers_of_megatron_bridge(path):
    module, name = path.split(":")
    config = getattr(import_module(f"mb_trainer.bridge.recipes.{module}"), name)()
    sections = config.sections()
    assert {key: value_at(key, sections) for key in PUBLISHED[path]} == PUBLISHED[path]


@pytest.mark.parametrize("name", entries())
def test_every_recipe_builds(name):
    config = getattr(import_module("mb_trainer.bridge.recipes"), name)()
    assert config.model is not None
    assert Provenance.of(config).origin("env_vars.NCCL_NVLS_ENABLE") == f"recipe {name}"


def test_adapters_are_those_of_a_name_or_an_object():
    named, other = llama3_8b_peft_config(), llama3_8b_peft_config("dora")
    assert (named.peft, other.peft) == (LoRA(dim=8, alpha=16), DoRA(dim=8, alpha=16))
    given = LoRA(dim=3)
    assert llama3_8b_peft_config(peft_scheme=given).peft is given
    assert inspect.signature(llama.llama3_8b_sft_config).parameters == {}


def test_a_recipe_has_the_same_function_in_every_module_that_exports_it():
    functions = {
        llama.llama3_8b_peft_config,
        llama.h100.llama3_8b_peft_1gpu_h100_bf16_config,
        llama.h100.llama3.llama3_8b_peft_1gpu_h100_bf16_config,
        llama.llama3.llama3_8b_peft_config,
    }
    assert functions == {llama3_8b_peft_config}
    assert "qwen2_500m_pretrain_config" in dir(qwen)
    with pytest.raises(ImportError, match=r"mb_models has no Gemma 4"):
        from mb_trainer.bridge.recipes.gemma import gemma4_e4b_pretrain_config  # noqa: F401
    with pytest.raises(AttributeError, match="no attribute 'llama9'"):
        import_module("mb_trainer.bridge.recipe_table").llama9  # noqa: B018


def test_what_the_caller_assigns_is_the_users():
    config = llama3_8b_peft_config()
    config.train.train_iters = 10
    known = Provenance.of(config)
    assert (known.by_user("train.train_iters"), known.by_user("train.global_batch_size")) == (True, False)


def test_a_script_merges_a_file_and_a_command_line(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("train: {train_iters: 100, eval_iters: 10}\nmodel: {seq_length: 4096}\n")
    config = process_config_with_overrides(
        llama3_8b_peft_config(),
        config_filepath=str(file),
        cli_overrides=["train.train_iters=7", "peft.dim=4", "model.params_dtype=torch.bfloat16"],
    )
    assert (config.train.train_iters, config.model.seq_length, config.peft.dim) == (7, 4096, 4)
    assert config.model.params_dtype == "bfloat16"
    # the deprecated name is the user's, and takes precedence over the value of the recipe
    runtime_config_update(config, world_size=1, rules=())
    assert config.validation.eval_iters == 10


def test_the_distributed_optimizer_is_on_in_both_sections_if_one_has_it_on():
    config = _sft_common()
    config.model = HybridModelProvider(hybrid_layer_pattern="M*", hidden_size=32)
    config.ddp.use_distributed_optimizer, config.optimizer.use_distributed_optimizer = False, True
    changes = runtime_config_update(config, world_size=1, rules=())
    assert (config.ddp.use_distributed_optimizer, config.optimizer.use_distributed_optimizer) == (True, True)
    assert [
        (each.rule, each.old, each.new) for each in changes if each.field == "ddp.use_distributed_optimizer"
    ] == [("V143", False, True)]


def test_what_follows_from_the_parallel_sizes_is_that_of_megatron_bridge():
    """Its providers switch sequence parallelism off at tp=1, and leave experts undivided by tensor parallelism."""
    config = _sft_common()
    config.model = GPTModelProvider(
        num_layers=2, hidden_size=32, num_attention_heads=2, num_moe_experts=4, sequence_parallel=True
    )
    runtime_config_update(config, world_size=1, rules=())
    assert (config.model.sequence_parallel, config.model.expert_tensor_parallel_size) == (False, None)
    config.model.tensor_model_parallel_size = config.model.expert_model_parallel_size = 2
    config.model.sequence_parallel = True
    changes = runtime_config_update(config, world_size=2, rules=())
    assert (config.model.sequence_parallel, config.model.expert_tensor_parallel_size) == (True, 1)
    assert [each.rule for each in changes if each.field == "model.expert_tensor_parallel_size"] == ["V161"]


def test_layers_of_further_tokens_move_behind_the_pattern():
    section = HybridModelProvider(hybrid_layer_pattern="M*", hidden_size=32)
    section.mtp_hybrid_override_pattern = "*E"
    section.mtp_num_layers = 2
    assert (section.hybrid_layer_pattern, section.mtp_hybrid_override_pattern) == ("M*/*E/*E", None)


def test_overrides_have_the_names_of_megatron_bridge():
    config = process_config_with_overrides(
        llama3_8b_peft_config(),
        cli_overrides=[
            "dataset.sequence_length=512",
            "dataset.offline_packing_specs.packed_sequence_size=512",
            "dataset.enable_in_batch_packing=false",
            "model.moe_hybridep_pad_uneven_dispatch_inputs=true",
        ],
    )
    assert (config.dataset.seq_length, config.dataset.packed_sequence_specs.packed_sequence_size) == (
        512,
        512,
    )
    assert config.dataset.pack_sequences_in_batch is False
    assert config.model.transformer["moe_hybridep_pad_uneven_dispatch_inputs"] is True
    with pytest.raises(ConfigReadError, match=r"dataset.sequence_lenght: no such field; did you mean"):
        process_config_with_overrides(config, cli_overrides=["dataset.sequence_lenght=1"])


def test_what_a_recipe_leaves_to_its_model_is_not_that_of_the_recipe_it_differs_from():
    entry = entries()["nemotron_3_super_pretrain_config"]
    assert not {"moe_grouped_gemm", "moe_permute_fusion"} & entry["settings"]["model"].keys()
