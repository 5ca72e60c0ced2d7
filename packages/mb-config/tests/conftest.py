"""A small container with custom sections, as a trainer defines it."""

from dataclasses import dataclass, field

import pytest

from mb_config import ConfigContainer, MixedPrecisionConfig, OptimizerConfig, SchedulerConfig, TrainingConfig


@dataclass(kw_only=True)
class Model:
    num_layers: int = 4
    num_attention_heads: int = 8
    seq_length: int = 64
    tensor_model_parallel_size: int = 1
    pipeline_model_parallel_size: int = 1
    context_parallel_size: int = 1
    bf16: bool = False
    fp16: bool = False
    params_dtype: str = "float32"
    pipeline_dtype: str | None = None
    use_te_rng_tracker: bool = False
    use_cpu_initialization: bool = False


@dataclass(kw_only=True)
class TextData:
    seq_length: int
    paths: list[str] = field(default_factory=list)
    weights: dict[str, float] = field(default_factory=dict)


@dataclass(kw_only=True)
class MockData:
    seq_length: int = 64


@dataclass(kw_only=True)
class Adapter:
    rank: int
    targets: tuple[str, ...] = ("linear_qkv",)


@dataclass(kw_only=True)
class Logger:
    log_interval: int = 10
    name: str | None = None
    comet_api_key: str | None = None


@dataclass(kw_only=True)
class Config(ConfigContainer):
    model: Model
    dataset: TextData | MockData
    logger: Logger
    peft: Adapter | None = None


@pytest.fixture
def make():
    """Return a function that builds a valid `Config`, with sections replaced by its arguments."""

    def build(**sections):
        parts = {
            "train": TrainingConfig(train_iters=100, global_batch_size=8, micro_batch_size=2),
            "model": Model(),
            "optimizer": OptimizerConfig(lr=1e-3),
            "scheduler": SchedulerConfig(lr_warmup_iters=10),
            "dataset": MockData(),
            "logger": Logger(),
            "tokenizer": None,
            "checkpoint": None,
        }
        values = {**parts, **sections}
        kind = Config if isinstance(values["model"], Model) else ConfigContainer  # accepts any model
        return kind(**values)

    return build


@pytest.fixture
def kinds():
    """Return the classes of the custom sections."""
    return {"Config": Config, "TextData": TextData, "MockData": MockData, "Adapter": Adapter, "Model": Model}


@pytest.fixture
def bf16():
    """Return a custom precision recipe."""
    return MixedPrecisionConfig(bf16=True, params_dtype="bfloat16")
