"""Sections: dataclasses that record which fields were set, with an idempotent finalize()."""

import copy
import pickle
import signal

import pytest

from mb_config import (
    ConfigContainer,
    ConfigError,
    DistributedDataParallelConfig,
    DistributedInitConfig,
    MixedPrecisionConfig,
    OptimizerConfig,
    SchedulerConfig,
    TrainingConfig,
    given_fields,
)


def test_fields_that_are_set_are_recorded_even_if_equal_to_the_default():
    ddp = DistributedDataParallelConfig(grad_reduce_in_fp32=False)
    ddp.bucket_size = None
    assert given_fields(ddp) == {"grad_reduce_in_fp32", "bucket_size"}
    assert ddp == DistributedDataParallelConfig()
    assert (
        given_fields(copy.deepcopy(ddp)) == given_fields(pickle.loads(pickle.dumps(ddp))) == given_fields(ddp)
    )


def test_a_copy_has_a_separate_record():
    first = TrainingConfig(train_iters=1)
    second = copy.copy(first)
    second.global_batch_size = 4
    assert given_fields(first) == {"train_iters"}


def test_other_dataclasses_and_objects(kinds):
    assert given_fields(kinds["Adapter"](rank=3)) == {"rank"}
    assert given_fields(kinds["TextData"](seq_length=3, paths=["a"])) == {"seq_length", "paths"}
    assert given_fields(object()) == frozenset()


def test_a_missing_required_section_is_an_error():
    with pytest.raises(TypeError, match="train"):
        ConfigContainer(model=None, optimizer=None, scheduler=None, dataset=None, logger=None, tokenizer=None)


def test_samples_are_converted_to_iterations_idempotently():
    train = TrainingConfig(train_samples=1000, global_batch_size=30)
    train.finalize()
    train.finalize()
    assert train.train_iters == 33
    assert given_fields(train) == {"train_samples", "global_batch_size"}


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"train_iters": 10, "train_samples": 1000, "global_batch_size": 30},
        {"train_samples": 1000},
        {"train_samples": 0, "global_batch_size": 1},
        {"num_epochs": -1.0, "global_batch_size": 1},
        {"train_iters": -1},
        {"train_samples": 8, "global_batch_size": 8, "rampup_batch_size": [8, 0, 8]},
    ],
)
def test_an_invalid_length_is_rejected(values):
    with pytest.raises(ConfigError, match="train"):
        TrainingConfig(**values).finalize()


@pytest.mark.parametrize(
    ("section", "rule"),
    [
        (SchedulerConfig(lr_decay_iters=10, lr_warmup_samples=3), "V062"),
        (OptimizerConfig(optimizer="adam", use_precision_aware_optimizer=True), "V051e"),
        (DistributedDataParallelConfig(num_buckets=0), "V050b"),
        (MixedPrecisionConfig(fp8="hybrid", fp4="e2m1"), "V015"),
    ],
)
def test_finalize_checks_only_the_section(section, rule):
    with pytest.raises(ConfigError) as caught:
        section.finalize()
    assert [problem.id for problem in caught.value.problems] == [rule]


def test_finalize_of_defaults_changes_nothing():
    for section in (SchedulerConfig(), OptimizerConfig(), DistributedDataParallelConfig()):
        before = copy.deepcopy(section)
        section.finalize()
        assert section == before


def test_precision_aliases_are_equal():
    assert MixedPrecisionConfig(fp8_param=True).fp8_param_gather is True
    precision = MixedPrecisionConfig()
    precision.fp8_param_gather = True
    precision.fp4_param = True
    assert (precision.fp8_param, precision.fp4_param_gather) == (True, True)
    precision = MixedPrecisionConfig(fp8_param_gather=True)
    precision.finalize()
    precision.finalize()
    assert (precision.fp8_param, precision.fp4_param) == (True, False)


def test_aliases_that_differ_are_rejected():
    with pytest.raises(ConfigError, match="fp8_param"):
        MixedPrecisionConfig(fp8_param=True, fp8_param_gather=False).finalize()


def test_constructors_read_no_environment_variables(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert DistributedInitConfig().local_rank == 0


def test_lazy_init_is_an_alias():
    dist = DistributedInitConfig()
    dist.lazy_init = True
    assert (dist.lazy_mpu_init, dist.lazy_init) == (True, True)


def test_the_signal_is_an_enum_member():
    assert TrainingConfig().exit_signal is signal.SIGTERM


def test_data_parallel_size(make):
    config = make()
    config.model.tensor_model_parallel_size = config.model.context_parallel_size = 2
    config.model.pipeline_model_parallel_size = 2
    assert config.get_data_parallel_size(16) == 2
    with pytest.raises(ConfigError, match="12 processes"):
        config.set_data_parallel_size(12)
    config.set_data_parallel_size(8)
    assert config.data_parallel_size == 1
    config.model = {"tensor_model_parallel_size": 4}
    assert config.get_data_parallel_size(16) == 4
