"""Our sections against the installed Megatron Core."""

from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("megatron.core")

import mb_config  # noqa: E402
from mb_config import (  # noqa: E402
    DistributedDataParallelConfig,
    OptimizerConfig,
    RNGConfig,
    SchedulerConfig,
    TrainingConfig,
    learning_rate,
    scheduler_steps,
)
from mb_config.mcore import (  # noqa: E402
    DroppedFieldError,
    MegatronDDPConfig,
    MegatronOptimizerConfig,
    build_scheduler,
    to_dtype,
    to_megatron,
)
from mb_config.mcore_defaults import drift, drift_from_data, installed_version  # noqa: E402
from mb_config.mcore_defaults import main as mcore_defaults  # noqa: E402
from mb_config.megatron_defaults import MegatronField, versions  # noqa: E402
from mb_config.rules.precision import DTYPES  # noqa: E402


def test_the_data_on_megatrons_classes_is_what_is_installed(monkeypatch):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if installed_version() not in versions():
        pytest.skip(
            f"no data on {installed_version()} yet: write it with `python -m mb_config.mcore_defaults --out`"
        )
    assert drift_from_data() == {}


def test_drift_is_named():
    def item(default, *kinds):
        return MegatronField(default=default, kinds=frozenset(kinds))

    known = {
        "a": item(1, "int"),
        "b": item(None, "int", "null"),
        "c": item(0.1, "float"),
        "d": item(1, "int"),
    }
    found = {"a": item(1, "int"), "b": item(None, "any"), "c": item(0.2, "float"), "e": item("x", "str")}
    assert drift(known, found) == [
        "d: is gone",
        "e: is new, default 'x'",
        "b: holds any, was int|null",
        "c: default 0.2, was 0.1",
    ]


def test_the_data_file_is_written(tmp_path, capsys):
    assert mcore_defaults(["--out", str(tmp_path)]) == 0
    (file,) = tmp_path.iterdir()
    assert capsys.readouterr().out.split() == [str(file)]
    assert mcore_defaults(["--check"]) == 0


def test_sections_become_megatrons():
    section = OptimizerConfig(lr=1e-3, bf16=True, params_dtype="bfloat16")
    real = to_megatron(section, timers=print)
    assert (type(real), real.lr, real.params_dtype, real.timers) == (
        MegatronOptimizerConfig,
        1e-3,
        torch.bfloat16,
        print,
    )
    real = to_megatron(DistributedDataParallelConfig(megatron_fsdp_max_pool_double_buffer=True))
    assert (type(real), real.megatron_fsdp_main_params_dtype) == (MegatronDDPConfig, torch.float32)
    assert real.fsdp_double_buffer is True


def test_a_field_that_megatron_would_drop_is_refused(monkeypatch):
    kept = [item for item in fields(MegatronDDPConfig) if item.name != "nccl_ub"]
    monkeypatch.setattr(
        "mb_config.mcore.fields", lambda cls: kept if cls is MegatronDDPConfig else fields(cls)
    )
    to_megatron(DistributedDataParallelConfig())
    with pytest.raises(DroppedFieldError, match="nccl_ub: not known to the installed megatron"):
        to_megatron(DistributedDataParallelConfig(nccl_ub=True))


def test_another_section_has_no_counterpart():
    with pytest.raises(TypeError, match="RNGConfig: cannot be made Megatron's"):
        to_megatron(RNGConfig())


def test_dtypes_by_name():
    assert {name: str(to_dtype(name)) for name in DTYPES} == {name: f"torch.{name}" for name in DTYPES}
    with pytest.raises(ValueError, match="'bf16': no dtype"):
        to_dtype("bf16")


@pytest.mark.parametrize(
    "section",
    [
        DistributedDataParallelConfig(reuse_grad_buf_for_mxfp8_param_ag=True),
        DistributedDataParallelConfig(num_buckets=0),
        DistributedDataParallelConfig(num_buckets=2, bucket_size=8),
        DistributedDataParallelConfig(
            grad_reduce_in_fp32=True, param_name_patterns_for_fp32_local_accumulation=("all",)
        ),
        OptimizerConfig(exp_avg_dtype="bfloat16"),
        OptimizerConfig(use_precision_aware_optimizer=True, optimizer="sgd"),
        OptimizerConfig(use_precision_aware_optimizer=True),
        OptimizerConfig(
            reuse_grad_buf_for_mxfp8_param_ag=True, overlap_param_gather_with_optimizer_step=True
        ),
    ],
)
def test_what_megatron_refuses_our_rules_refuse_first(section):
    with pytest.raises((AssertionError, ValueError)):
        to_megatron(section)
    with pytest.raises(mb_config.ConfigError):
        section.finalize()


class Weights:
    """An optimizer as the scheduler sees it."""

    def __init__(self):
        self.param_groups = [{"lr": 0.0, "weight_decay": 0.0}]


def built(scheduler, optimizer, steps):
    weights = Weights()
    return build_scheduler(
        weights, scheduler=scheduler, settings=optimizer, steps=steps
    ), weights.param_groups[0]


def test_default_sections_build_a_scheduler():
    optimizer = OptimizerConfig(lr=1e-3, weight_decay=0.1)
    steps = scheduler_steps(TrainingConfig(train_iters=10, global_batch_size=8), SchedulerConfig())
    scheduler, group = built(SchedulerConfig(), optimizer, steps)
    scheduler.step(40)
    assert group == {"lr": pytest.approx(5e-4), "weight_decay": 0.1}


def test_weight_decay_grows():
    section = SchedulerConfig(weight_decay_incr_style="linear", end_weight_decay=0.3)
    steps = scheduler_steps(TrainingConfig(train_iters=10, global_batch_size=8), section)
    scheduler, group = built(section, OptimizerConfig(lr=1.0, weight_decay=0.1), steps)
    scheduler.step(40)
    assert group["weight_decay"] == pytest.approx(0.2)


def test_a_scheduler_needs_a_learning_rate():
    with pytest.raises(ValueError, match=r"optimizer.lr: is not set"):
        built(SchedulerConfig(), OptimizerConfig(), None)


@settings(deadline=None)
@given(
    style=st.sampled_from(["constant", "linear", "cosine", "inverse-square-root", "WSD"]),
    last_style=st.sampled_from(["exponential", "linear", "cosine", "minus_sqrt"]),
    iters=st.integers(1, 200),
    batch=st.integers(1, 16),
    warmup=st.integers(0, 250),
    last=st.none() | st.integers(1, 200),
    part=st.floats(0, 1.2),
)
def test_our_formula_is_megatrons(style, last_style, iters, batch, warmup, last, part):
    section = SchedulerConfig(
        lr_decay_style=style,
        lr_wsd_decay_style=last_style,
        lr_warmup_iters=warmup,
        lr_wsd_decay_iters=last,
        lr_warmup_init=0.01,
    )
    optimizer = OptimizerConfig(lr=1.0, min_lr=0.1)
    steps = scheduler_steps(TrainingConfig(train_iters=iters, global_batch_size=batch), section)
    scheduler, group = built(section, optimizer, steps)
    consumed = round(part * iters * batch)
    scheduler.step(consumed)
    ours = learning_rate(consumed, steps=steps, scheduler=section, optimizer=optimizer)
    assert ours == pytest.approx(group["lr"], abs=1e-12)
