"""Data of Megatron's fields and defaults."""

import sys
from dataclasses import MISSING, fields

import pytest

import mb_config
from mb_config import (
    MegatronField,
    OptimizerConfig,
    UnknownMegatronError,
    megatron_fields,
    non_default_values,
)
from mb_config.megatron_defaults import CLASSES, megatron_defaults, megatron_version, plain_value


def test_the_data_has_all_classes():
    assert megatron_version() == "0.19.2"
    assert [len(megatron_fields(name)) > 3 for name in CLASSES] == [True] * len(CLASSES)


def test_a_field():
    field = megatron_fields("TransformerConfig")["hidden_dropout"]
    assert field == MegatronField(default=0.1, kinds=frozenset({"float"}))
    assert [field.accepts(value) for value in (0.2, 0, True, "0.1", None)] == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert megatron_fields("TransformerConfig")["pipeline_dtype"].accepts(None)


def test_unknown_classes_are_errors():
    with pytest.raises(UnknownMegatronError, match="GPTConfig: there is no data for this class"):
        megatron_fields("GPTConfig")


NOT_IN_MEGATRON = "read by this trainer, not by Megatron's"
DIFFERENCES = {
    "TrainingConfig": {
        "early_stop_patience": NOT_IN_MEGATRON,
        "early_stop_metric": NOT_IN_MEGATRON,
        "early_stop_min_delta": NOT_IN_MEGATRON,
        "early_stop_mode": NOT_IN_MEGATRON,
        "check_optimizer_step_success": NOT_IN_MEGATRON,
        "skip_sync_grad_norm_across_mp": NOT_IN_MEGATRON,
        "eval_iters": "deprecated name of validation.eval_iters; resolving moves the value",
        "eval_interval": "deprecated name of validation.eval_interval",
        "skip_train": "deprecated name of validation.skip_train",
        "num_epochs": NOT_IN_MEGATRON,
    },
    "SchedulerConfig": {
        "max_steps": NOT_IN_MEGATRON,
        "max_lr": "set by Megatron-Bridge's recipes, and held to optimizer.lr",
        "min_lr": "set by Megatron-Bridge's recipes, and held to optimizer.min_lr",
    },
    "DistributedInitConfig": {
        "external_gpu_device_mapping": NOT_IN_MEGATRON,
        "enable_megatron_core_experimental": NOT_IN_MEGATRON,
        "use_decentralized_pg": NOT_IN_MEGATRON,
        "eval_context_parallel_size": NOT_IN_MEGATRON,
    },
}
"""Differences between a section and Megatron's class of the same name, with the reason."""


@pytest.mark.parametrize(
    "name",
    [
        "OptimizerConfig",
        "DistributedDataParallelConfig",
        "TrainingConfig",
        "ValidationConfig",
        "SchedulerConfig",
        "RNGConfig",
        "DistributedInitConfig",
    ],
)
def test_sections_differ_from_megatrons_classes_only_as_listed(name):
    cls = getattr(mb_config, name)
    made = {
        item.name: item.default_factory() if item.default is MISSING else item.default
        for item in fields(cls)
        if item.init
    }
    ours = {key: plain_value(value) for key, value in made.items()}
    theirs = megatron_defaults(name)
    known = {key: item for key, item in ours.items() if key in theirs}
    assert known == theirs
    assert ours.keys() - theirs.keys() == DIFFERENCES.get(name, {}).keys()


def test_plain_values():
    assert plain_value({"a": (1, None), "b": {"y", "x"}, "c": len, "d": sys.stdout.__class__}) == {
        "a": [1, None],
        "b": ["x", "y"],
        "c": "len",
        "d": sys.stdout.__class__.__name__,
    }


def block(text, name):
    lines = text.splitlines()
    start = lines.index(f"{name}:")
    return [line.strip() for line in lines[start + 1 :]][
        : next((i for i, line in enumerate(lines[start + 1 :]) if not line.startswith("  ")), None)
    ]


def test_a_changed_value_is_listed_with_megatrons_default(make):
    text = non_default_values(make(optimizer=OptimizerConfig(lr=1e-3, bf16=True)))
    assert text.splitlines()[0] == "=" * 70
    assert block(text, "optimizer") == [
        "bf16: True (Mcore default: False)",
        "lr: 0.001 (Mcore default: None)",
    ]
    assert block(text, "ddp") == ["all as in Megatron Core"]
    assert block(text, "model")[:2] == [
        "num_attention_heads: 8 (Mcore default: 0)",
        "num_layers: 4 (Mcore default: 0)",
    ]
    assert "seed: 1234" in block(text, "rng")


def test_a_field_that_megatron_does_not_have_is_compared_with_its_default(make):
    config = make()
    config.model.seq_length = 32
    assert "seq_length: 32 (not in Mcore, default: 64)" in block(non_default_values(config), "model")


def test_a_deepseek_model_is_compared_with_the_latent_attention_class(make):
    model = {"multi_latent_attention": True, "q_lora_rank": 512, "rope_type": "yarn", "kv_lora_rank": 64}
    assert block(non_default_values(make(model=model)), "model") == ["kv_lora_rank: 64 (Mcore default: 512)"]
    plain = block(non_default_values(make(model={**model, "multi_latent_attention": False})), "model")
    assert "q_lora_rank: 512 (not in Mcore)" in plain


def test_the_report_is_one_log_record(make, caplog):
    caplog.set_level("INFO", logger="mb_config")
    config = make()
    config.log_non_default_values()
    assert [record.getMessage() for record in caplog.records] == ["\n" + mb_config.non_default_values(config)]
