"""Comparison of the sections with the installed Megatron Core."""

import copy
import math
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
    OptimizerConfigOverrideProvider,
    OptimizerConfigOverrideProviderContext,
    RNGConfig,
    SchedulerConfig,
    TrainingConfig,
    mcore,
    scheduler_steps,
)
from mb_config.mcore import (  # noqa: E402
    DroppedFieldError,
    MegatronDDPConfig,
    MegatronOptimizerConfig,
    ParamKey,
    build_scheduler,
    to_dtype,
    to_megatron,
)
from mb_config.mcore_defaults import drift, drift_from_data, installed_version  # noqa: E402
from mb_config.mcore_defaults import main as mcore_defaults  # noqa: E402
from mb_config.megatron_defaults import MegatronField, megatron_version  # noqa: E402
from mb_config.rules.precision import DTYPES  # noqa: E402
from mb_schema.batch_stages import scheduled_stages, steps_within  # noqa: E402


def test_the_data_of_megatrons_classes_matches_the_installed_version(monkeypatch):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if installed_version() not in ("0.19.0", megatron_version()):  # both have equal classes
        pytest.skip(
            f"no data for {installed_version()} yet: generate it with `python -m mb_config.mcore_defaults --out`"
        )
    assert drift_from_data() == {}


def test_drift_is_reported():
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
        "d: was removed",
        "e: was added, default 'x'",
        "b: holds any, was int|null",
        "c: default 0.2, was 0.1",
    ]


def test_the_data_file_is_written(tmp_path, capsys):
    assert mcore_defaults(["--out", str(tmp_path)]) == 0
    (file,) = tmp_path.iterdir()
    assert capsys.readouterr().out.split() == [str(file)]
    assert mcore_defaults(["--check"]) == 0


def test_sections_are_converted_to_megatrons_classes():
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


def test_a_field_that_megatron_does_not_have_is_rejected(monkeypatch):
    kept = [item for item in fields(MegatronDDPConfig) if item.name != "nccl_ub"]
    monkeypatch.setattr(
        "mb_config.mcore.fields", lambda cls: kept if cls is MegatronDDPConfig else fields(cls)
    )
    to_megatron(DistributedDataParallelConfig())
    with pytest.raises(
        DroppedFieldError,
        match=r"nccl_ub: DistributedDataParallelConfig of the installed Megatron Core .* does not have",
    ):
        to_megatron(DistributedDataParallelConfig(nccl_ub=True))


def test_an_object_of_megatron_is_returned_itself():
    megatrons = MegatronDDPConfig(overlap_grad_reduce=True)
    assert to_megatron(megatrons, bucket_size=7) is megatrons
    assert (megatrons.overlap_grad_reduce, megatrons.bucket_size) == (True, 7)


def test_a_section_without_a_counterpart():
    with pytest.raises(TypeError, match="RNGConfig: cannot be converted to a dataclass"):
        to_megatron(RNGConfig())


def test_dtypes_by_name():
    assert {name: str(to_dtype(name)) for name in DTYPES} == {name: f"torch.{name}" for name in DTYPES}
    with pytest.raises(ValueError, match=r"'bf16': unsupported dtype\. Use one of float64"):
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
def test_settings_that_megatron_rejects_are_rejected_by_rules_first(section):
    with pytest.raises((AssertionError, ValueError)):
        to_megatron(section)
    with pytest.raises(mb_config.ConfigError):
        section.finalize()


@pytest.mark.parametrize(
    ("cls", "wrong", "fixed"),
    [
        (mcore.OptimizerConfig, {"exp_avg_dtype": torch.bfloat16}, {"exp_avg_dtype": torch.float32}),
        (mcore.DistributedDataParallelConfig, {"num_buckets": 0}, {"num_buckets": 2}),
    ],
)
def test_checks_wait_for_finalize(cls, wrong, fixed):
    section = cls(**wrong)
    with pytest.raises(AssertionError):
        section.finalize()
    for name, value in fixed.items():
        setattr(section, name, value)
    section.finalize()
    once = copy.deepcopy(section)
    section.finalize()
    assert section == once
    assert isinstance(section, MegatronOptimizerConfig | MegatronDDPConfig)


def test_a_deferred_config_is_finalized_and_returned():
    section = mcore.DistributedDataParallelConfig()
    section.megatron_fsdp_max_pool_double_buffer = True
    assert to_megatron(section, bucket_size=8) is section
    assert (section.fsdp_double_buffer, section.bucket_size) == (True, 8)


class SlowNorms(OptimizerConfigOverrideProvider):
    """Norms learn at a tenth of the rate."""

    def build_config_overrides(self, context):
        slow = {ParamKey(name="norm.*"): {"max_lr": context.optimizer_config.lr / 10}}
        return {**super().build_config_overrides(context), **slow}


def group_of(provider, name, **settings):
    """Return the settings of Megatron's parameter group for this parameter."""
    model = torch.nn.ModuleDict(
        {"proj": torch.nn.Linear(3, 3), "norm": torch.nn.LayerNorm(3), "q_layernorm": torch.nn.LayerNorm(3)}
    )
    context = OptimizerConfigOverrideProviderContext(
        scheduler_config=SchedulerConfig(), optimizer_config=OptimizerConfig(lr=1.0, **settings), model=model
    )
    parameter = dict(model.named_parameters())[name]
    overrides = provider.build_config_overrides(context)
    matching = [values for key, values in overrides.items() if key.matches(parameter, name)]
    return {key: value for values in matching for key, value in values.items()}


def test_biases_and_norms_do_not_decay():
    provider = OptimizerConfigOverrideProvider()
    groups = {name: group_of(provider, name) for name in ("proj.weight", "proj.bias", "norm.weight")}
    assert groups == {"proj.weight": {}, "proj.bias": {"wd_mult": 0.0}, "norm.weight": {"wd_mult": 0.0}}
    assert group_of(provider, "q_layernorm.weight", apply_wd_to_qk_layernorm=True) == {}


def test_a_subclass_adds_learning_rates():
    group = group_of(SlowNorms(), "norm.weight")
    assert group == {"wd_mult": 0.0, "max_lr": 0.1}
    section, settings = SchedulerConfig(lr_decay_style="constant"), OptimizerConfig(lr=1.0, weight_decay=0.5)
    steps = scheduler_steps(TrainingConfig(train_iters=10, global_batch_size=8), section)
    scheduler, _ = built(section, settings, steps)
    scheduler.step(8)
    assert (scheduler.get_lr(group), group["wd_mult"] * scheduler.get_wd(group)) == (0.1, 0.0)


class Weights:
    """An optimizer as the scheduler sees it."""

    def __init__(self):
        self.param_groups = [{"lr": 0.0, "weight_decay": 0.0}]


def built(scheduler, optimizer, steps):
    weights = Weights()
    return build_scheduler(
        weights, scheduler=scheduler, optimizer_config=optimizer, steps=steps
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


SHAPES = {
    "lr_decay_style": st.sampled_from(["constant", "linear", "cosine", "inverse-square-root", "WSD"]),
    "lr_wsd_decay_style": st.sampled_from(["exponential", "linear", "cosine", "minus_sqrt"]),
    "lr_warmup_init": st.sampled_from([0.0, 0.01]),
    "weight_decay_incr_style": st.sampled_from(["constant", "linear", "cosine"]),
}


@st.composite
def runs(draw):
    """A training and a schedule, counted in steps or in sequences."""
    shape = {name: draw(values) for name, values in SHAPES.items()}
    batch, length = draw(st.integers(1, 16)), draw(st.integers(1, 200))
    unit, word = draw(st.sampled_from([("iters", "train_iters"), ("samples", "train_samples")]))
    length = max(length, batch) if unit == "samples" else length
    warmup = draw(st.one_of(st.integers(0, 250), st.floats(0, 1)))
    key = f"lr_warmup_{unit}" if isinstance(warmup, int) else "lr_warmup_fraction"
    last, decay = draw(st.none() | st.integers(1, 200)), draw(st.none() | st.integers(1, 300))
    scheduler = SchedulerConfig(
        **shape, **{key: warmup, f"lr_wsd_decay_{unit}": last, f"lr_decay_{unit}": decay}
    )
    if shape["weight_decay_incr_style"] != "constant":
        scheduler.start_weight_decay, scheduler.end_weight_decay = 0.1, 0.3
    return TrainingConfig(global_batch_size=batch, **{word: length}), scheduler


def decay_after(consumed, steps, scheduler):
    """Weight decay by its formula."""
    if scheduler.weight_decay_incr_style == "constant":
        return 0.01
    part = min(consumed / steps.wd_incr_steps, 1.0)
    if scheduler.weight_decay_incr_style == "cosine":
        part = 0.5 * (math.cos(math.pi * (1 - part)) + 1.0)
    return 0.1 + part * 0.2


def rate_after(consumed, steps, scheduler):
    """Learning rate from 0.1 to 1 by its formula."""
    warmup, horizon = steps.lr_warmup_steps, steps.lr_decay_steps
    if warmup > 0 and consumed <= warmup:
        return scheduler.lr_warmup_init + (1.0 - scheduler.lr_warmup_init) * consumed / warmup
    style, begin = scheduler.lr_decay_style, warmup
    if style == "constant":
        return 1.0
    if consumed > horizon:
        return 0.1
    if style == "inverse-square-root":
        return max(0.1, math.sqrt(max(warmup, 1)) / math.sqrt(max(consumed, 1)))
    if style == "WSD":
        style, begin = scheduler.lr_wsd_decay_style, horizon - steps.wsd_decay_steps
        if consumed <= begin:
            return 1.0
    part = (consumed - begin) / (horizon - begin)
    remaining = {
        "linear": 1.0 - part,
        "cosine": 0.5 * (math.cos(math.pi * part) + 1.0),
        "exponential": 2.0 * 0.5**part - 1.0,
        "minus_sqrt": 1.0 - math.sqrt(part),
    }
    return 0.1 + remaining[style] * 0.9


@settings(deadline=None)
@given(run=runs(), parts=st.lists(st.floats(0, 0.6), min_size=1, max_size=3))
def test_the_formulas_equal_megatrons_scheduler(run, parts):
    """Learning rate and weight decay after any number of sequences, in any number of steps."""
    train, section = run
    optimizer = OptimizerConfig(lr=1.0, min_lr=0.1)
    steps = scheduler_steps(train, section)
    assert 0 <= steps.lr_warmup_steps < steps.lr_decay_steps
    scheduler, group = built(section, optimizer, steps)
    consumed = 0
    for part in parts:
        increment = round(part * steps.lr_decay_steps)
        scheduler.step(increment)
        consumed += increment
        assert rate_after(consumed, steps, section) == pytest.approx(group["lr"], abs=1e-12)
        assert decay_after(consumed, steps, section) == pytest.approx(group["weight_decay"], abs=1e-12)


@settings(deadline=None, max_examples=20)
@given(run=runs(), first=st.integers(0, 300), rest=st.integers(0, 300))
def test_a_resumed_schedule_equals_an_uninterrupted_one(run, first, rest):
    train, section = run
    optimizer, steps = OptimizerConfig(lr=1.0, min_lr=0.1), scheduler_steps(train, section)
    whole, expected = built(section, optimizer, steps)
    whole.step(first)
    whole.step(rest)
    stopped, _ = built(section, optimizer, steps)
    stopped.step(first)
    resumed, group = built(section, optimizer, steps)
    resumed.load_state_dict(stopped.state_dict())
    resumed.step(rest)
    assert group == expected


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    apart=st.integers(1, 60),
    samples=st.integers(1, 900),
    seq_length=st.integers(1, 9),
)
def test_the_steps_of_a_schedule_are_those_of_megatrons_calculator(sizes, apart, samples, seq_length):
    """A loop over Megatron Core's own calculator, up to the first batch that is beyond the samples."""
    from megatron.core.num_microbatches_calculator import StepBatchsizeNumMicroBatchesCalculator

    text = " ".join(f"{number * apart * seq_length}:{size}" for number, size in enumerate(sizes))
    calculator = StepBatchsizeNumMicroBatchesCalculator(1, 1, False, 1, text, seq_length)
    iterations = consumed = 0
    while True:
        calculator.update(consumed, consistency_check=False)
        consumed += calculator.get_current_global_batch_size()
        if consumed > samples:
            break
        iterations += 1
    assert steps_within(samples, scheduled_stages(text, seq_length=seq_length)) == iterations
