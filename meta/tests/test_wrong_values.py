"""Values of a wrong type in standalone sections, sections replaced by other objects, and impossible sizes."""

import math
import time
from types import SimpleNamespace

import pytest

from mb_config import ConfigError, Provenance, mimo_runtime_config_update, runtime_config_update
from mb_config.preflight.facts import TargetMachine
from mb_config.preflight.run import preflight
from mb_trainer.config import (
    CheckpointConfig,
    CommOverlapConfig,
    DistributedDataParallelConfig,
    DrawnShapesConfig,
    FinetuningDatasetConfig,
    GPTDatasetConfig,
    LoggerConfig,
    MixedPrecisionConfig,
    MockGPTDatasetConfig,
    NVRxStragglerDetectionConfig,
    OptimizerConfig,
    ProfilingConfig,
    SchedulerConfig,
    TensorInspectConfig,
    TrainingConfig,
)
from mb_trainer.recipes import RECIPES
from mb_trainer.requests import read_request
from mb_trainer.run.preflight import CHECKS, target_facts

ALONE = [
    (CheckpointConfig(save_interval="eight"), "checkpoint.save_interval", "int or auto or null"),
    (DistributedDataParallelConfig(bucket_size="x"), "ddp.bucket_size", "int or null"),
    (DrawnShapesConfig(seq_length="x"), "dataset.seq_length", "int"),
    (FinetuningDatasetConfig(seq_length="x"), "dataset.seq_length", "int"),
    (GPTDatasetConfig(seq_length=None), "dataset.seq_length", "int"),
    (MockGPTDatasetConfig(seq_length="x"), "dataset.seq_length", "int"),
    (LoggerConfig(log_interval="x"), "logger.log_interval", "int"),
    (MixedPrecisionConfig(bf16="x"), "mixed_precision.bf16", "bool"),
    (
        NVRxStragglerDetectionConfig(enabled=True, report_time_interval="x"),
        "nvrx_straggler.report_time_interval",
        "float",
    ),
    (OptimizerConfig(clip_grad="x"), "optimizer.clip_grad", "float"),
    (ProfilingConfig(profile_step_start="x"), "profiling.profile_step_start", "int"),
    (SchedulerConfig(lr_warmup_iters="x"), "scheduler.lr_warmup_iters", "int"),
    (TensorInspectConfig(init_training_step="x"), "tensor_inspect.init_training_step", "int"),
    (TrainingConfig(train_iters="x"), "train.train_iters", "int or null"),
]

ONE_PROCESS = TargetMachine(world_size=1)


@pytest.mark.parametrize(("section", "path", "expected"), ALONE, ids=lambda item: type(item).__name__)
def test_finalize_of_a_section_alone_names_the_field(section, path, expected):
    value = getattr(section, path.partition(".")[2])
    with pytest.raises((TypeError, ConfigError)) as caught:
        section.finalize()
    assert str(caught.value) == (
        f"{path}: expected {expected}, not {value!r}, because the field does not accept this value. "
        "Set a value of the expected type."
    )


def test_overlap_used_alone_names_the_field():
    with pytest.raises(TypeError, match=r"^comm_overlap.bucket_size: expected int or null, not 'x', because"):
        CommOverlapConfig(tp_comm_overlap=False, bucket_size="x").setup(None, None, None)


def test_a_secret_of_a_wrong_type_is_not_shown():
    with pytest.raises(TypeError, match=r"not \['<masked>'\]"):
        LoggerConfig(comet_api_key=["s3cret"]).finalize()


@pytest.mark.parametrize(
    "section", ["model", "ddp", "dataset", "dist", "checkpoint", "comm_overlap", "peft", "tokenizer"]
)
@pytest.mark.parametrize(
    "other", [{"num_layers": 2}, SimpleNamespace(num_layers=2), object(), len, int, "x", 1j]
)
def test_a_section_that_is_another_object_is_reported(section, other):
    config = RECIPES["gpt_tiny"].build()
    setattr(config, section, other)
    found = [problem for problem in config.check(world_size=1) if problem.id == "TY01"]
    assert [problem.fields for problem in found] == [(section,)]
    assert "expected" in found[0].message
    with pytest.raises(ConfigError, match=rf"\[TY01\] {section}: "):
        runtime_config_update(config, world_size=1)
    findings = preflight(
        config,
        CHECKS,
        facts=target_facts(ONE_PROCESS),
        provenance=read_request([]).provenance,
    )
    assert not findings.resolved
    with pytest.raises(ConfigError, match="TY01"):
        mimo_runtime_config_update(config)


SIZES = [
    "model.num_layers",
    "model.mtp_num_layers",
    "model.hidden_size",
    "model.ffn_hidden_size",
    "model.vocab_size",
    "model.num_moe_experts",
    "model.seq_length",
    "train.global_batch_size",
    "train.micro_batch_size",
]


@pytest.mark.parametrize("path", SIZES)
def test_a_size_that_fits_no_machine_is_rejected_at_once(path):
    request = read_request([f"{path}=10000000000000"])
    started = time.process_time()
    findings = preflight(
        request.config, CHECKS, facts=target_facts(ONE_PROCESS), provenance=request.provenance
    )
    assert time.process_time() - started < 1
    found = [problem for problem in findings.errors if problem.id.startswith("SZ") and path in problem.fields]
    assert len(found) == 1
    assert f"{path}: is 10,000,000,000,000, more than" in str(found[0])


def test_sizes_that_are_possible_alone_but_not_together_are_rejected():
    request = read_request(
        ["model.num_layers=10000", "model.hidden_size=1000000", "model.ffn_hidden_size=1000000"]
    )
    findings = preflight(
        request.config, CHECKS, facts=target_facts(ONE_PROCESS), provenance=request.provenance
    )
    assert "SZ08" in {problem.id for problem in findings.errors}


def test_a_huge_model_with_a_pipeline_layout_is_not_written_out():
    request = read_request(
        ["model.num_layers=10000000000000", "model.pipeline_model_parallel_layout='Ettt|L'"]
    )
    found = request.config.check(request.config.installed_rules(), world_size=2)
    assert "SZ01a" in {problem.id for problem in found}


@pytest.mark.parametrize("percent", [-0.5, 0.0, 1.5, math.inf, -math.inf, math.nan])
def test_a_share_of_a_head_is_above_0_and_at_most_1(percent):
    config = RECIPES["gpt_tiny"].build()
    config.model.rotary_percent = percent
    assert "MN03" in {problem.id for problem in config.check(config.installed_rules())}


def test_an_empty_pipeline_layout_is_a_problem():
    config = RECIPES["mla_tiny"].build()
    config.model.pipeline_model_parallel_layout, config.model.mtp_num_layers = [], 1
    found = preflight(config, CHECKS, facts=target_facts(ONE_PROCESS), provenance=Provenance())
    assert "G22" in {problem.id for problem in found.errors}
