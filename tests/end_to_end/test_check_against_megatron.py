"""`check` and Megatron Core agree: accepted configurations are built, and `check` rejects what Megatron rejects.

Random small configurations, most of them nearly right: a valid one, up to two groups of settings that belong together,
and up to four fields with a value of their type. `pytest --hypothesis-show-statistics` prints how many were
accepted and rejected; MB_EXAMPLES=20000 draws more of them.
"""

import itertools
import os
import types
import typing
from copy import deepcopy
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import torch
import torch.distributed
from hypothesis import event, given, settings
from hypothesis import strategies as st
from megatron.core import parallel_state
from torch.testing._internal.distributed.fake_pg import FakeStore

import mb_config
import mb_models.rules
import mb_models.rules.parallelism
import mb_overlap.rules
from mb_config import (
    ConfigContainer,
    ConfigError,
    DistributedDataParallelConfig,
    OptimizerConfig,
    SchedulerConfig,
    TrainingConfig,
    runtime_config_update,
    scheduler_steps,
)
from mb_config.mcore import build_scheduler, to_megatron
from mb_models import GPTModelConfig
from mb_models.gpt.transformer import megatron_class, resolve_names, transformer_config

RULES = (*mb_config.RULES, *mb_models.rules.RULES, *mb_overlap.rules.RULES)
SIZE_RULES = (*mb_config.RULES, *mb_models.rules.parallelism.RULES)
RESOLVED_RULES = (*RULES, mb_models.rules.INTERLEAVING)
WORLD = 8
FACTS = {"world_size": WORLD, "env": {}, "gpu": "h100", "cpu": False, "transformer_engine": False}
"""Facts of a GPU without Transformer Engine, as Megatron sees them here, where the host replaces CUDA."""

SECTIONS = {
    "model": GPTModelConfig,
    "optimizer": OptimizerConfig,
    "ddp": DistributedDataParallelConfig,
    "scheduler": SchedulerConfig,
}
OPAQUE = {"model.transformer", "model.tp_comm_overlap_cfg", "optimizer.timers"}
"""Fields that hold settings or objects of Megatron or Transformer Engine, which alone validate them."""

BY_KIND = {
    type(None): [None],
    bool: [True, False],
    int: [0, 1, 2, 3, 4, 8],
    float: [0.0, 0.5, 2.0],
}
DTYPES = ["float32", "bfloat16", "float16", "uint8"]
BY_FIELD: dict[str, list[Any]] = {
    "model.window_size": [(4, 0), None],
    "model.cp_comm_type": ["p2p", "a2a", "all_gather", "a2a+p2p", ["p2p", "a2a"], None],
    "model.hierarchical_context_parallel_sizes": [[2, 2], [2], None],
    "model.cuda_graph_modules": [
        "full",
        ["attn"],
        ["mlp"],
        ["moe"],
        ["moe_router"],
        ["full_iteration"],
        ["attn", "moe_router"],
        ["moe_router", "moe_preprocess"],
    ],
    "model.recompute_modules": [
        None,
        ["core_attn"],
        ["mlp"],
        ["moe"],
        ["moe_act"],
        ["layernorm"],
        ["mla_up_proj"],
        ["core_attn", "shared_experts"],
        ["nothing"],
    ],
    "model.moe_layer_freq": [1, 2, [0, 1, 0, 1], [1, 1]],
    "model.moe_router_load_balancing_type": ["aux_loss", "sinkhorn", "none", ["aux_loss", "seq_aux_loss"]],
    "model.moe_aux_loss_coeff": [0.0, 0.1, [0.1, 0.1], [0.1]],
    "optimizer.optimizer": ["adam", "sgd", "muon", "lion"],
    **{f"optimizer.{name}_dtype": DTYPES for name in ("main_grads", "main_params", "exp_avg", "exp_avg_sq")},
    "ddp.param_name_patterns_for_fp32_local_accumulation": [(), ("all",)],
    "train.train_samples": [None, 64],
}
GROUPS: list[dict[str, Any]] = [
    {"model.num_moe_experts": 4},
    {
        "model.num_moe_experts": 4,
        "model.moe_token_dispatcher_type": "alltoall",
        "model.expert_model_parallel_size": 2,
    },
    {"model.tensor_model_parallel_size": 2, "model.sequence_parallel": True},
    {"model.pipeline_model_parallel_size": 2},
    {
        "model.pipeline_model_parallel_size": 2,
        "model.virtual_pipeline_model_parallel_size": 2,
        "model.overlap_p2p_comm": True,
        "model.batch_p2p_comm": False,
    },
    {"model.context_parallel_size": 2},
    {"model.bf16": True, "model.params_dtype": "bfloat16", "optimizer.bf16": True},
    {"model.fp8": "hybrid", "model.transformer_impl": "transformer_engine"},
    {"model.recompute_granularity": "selective"},
    {"model.cuda_graph_impl": "transformer_engine", "model.transformer_impl": "transformer_engine"},
    {"ddp.use_distributed_optimizer": True},
    {"optimizer.use_precision_aware_optimizer": True, "ddp.use_distributed_optimizer": True},
]


def values_of(annotation: Any) -> list[Any]:
    """Return some values of a type, or none for a type that needs an entry in `BY_FIELD`."""
    if get_origin(annotation) in (typing.Union, types.UnionType):
        return [value for option in get_args(annotation) for value in values_of(option)]
    return list(get_args(annotation)) if get_origin(annotation) is Literal else BY_KIND.get(annotation, [])


def pools() -> dict[str, list[Any]]:
    """Return the values that each field may take."""
    found = dict(BY_FIELD)
    for section, cls in SECTIONS.items():
        types_of = get_type_hints(cls)
        for path, item in ((f"{section}.{item.name}", item) for item in fields(cls)):
            values = values_of(types_of[item.name])
            if item.init and values and path not in {*OPAQUE, *BY_FIELD}:
                found[path] = values
    return found


@st.composite
def settings_of_runs(draw: st.DrawFn) -> dict[str, Any]:
    """Draw differences from a valid small configuration."""
    groups = draw(st.lists(st.sampled_from(GROUPS), max_size=2))
    known = pools()
    chosen = draw(st.lists(st.sampled_from(sorted(known)), max_size=4, unique=True))
    alone = {path: draw(st.sampled_from(known[path])) for path in chosen}
    return {path: value for group in [*groups, alone] for path, value in group.items()}


def build(values: dict[str, Any]) -> ConfigContainer:
    """Return a valid small configuration with these changes."""
    config = ConfigContainer(
        train=TrainingConfig(train_iters=10, global_batch_size=16, micro_batch_size=1),
        model=GPTModelConfig(
            num_layers=4,
            hidden_size=32,
            num_attention_heads=4,
            seq_length=16,
            transformer_impl="local",
            vocab_size=64,
        ),
        optimizer=OptimizerConfig(lr=1e-3),
        scheduler=SchedulerConfig(lr_warmup_iters=1),
        dataset=None,
        logger=None,
        tokenizer=None,
        checkpoint=None,
    )
    for path, value in values.items():
        section, _, name = path.partition(".")
        setattr(getattr(config, section), name, deepcopy(value))
    if config.train.train_samples is not None:
        config.train.train_iters = None
    return config


def refused_by_check(config: ConfigContainer) -> tuple[list[str], ConfigContainer]:
    """The rules that are broken, as it is written or once it is resolved; and the resolved one."""
    found = mb_config.check(config.sections(), RULES, facts=FACTS)
    resolved = deepcopy(config)
    try:
        runtime_config_update(resolved, world_size=WORLD, facts=FACTS)
        found += mb_config.check(resolved.sections(), RESOLVED_RULES, facts={**FACTS, "resolved": True})
    except ConfigError as error:
        found += error.problems
    return [problem.id for problem in found if problem.severity == "error"], resolved


class Weights:
    """An optimizer as the scheduler sees it."""

    def __init__(self) -> None:
        self.param_groups = [{"lr": 0.0, "weight_decay": 0.0}]


def transformer(model: GPTModelConfig) -> None:
    """Construct Megatron's class from the section, without a rule or a replacement of ours."""
    kind, names = megatron_class(model)
    values = {name: getattr(model, name) for name in names}
    if model.virtual_pipeline_model_parallel_size == 1:
        values["virtual_pipeline_model_parallel_size"] = None
    if model.cuda_graph_modules == "full":
        values["cuda_graph_modules"] = []
    values["pipeline_dtype"] = model.pipeline_dtype or model.params_dtype
    kind(**deepcopy(resolve_names(values)))


def refused_by_megatron(config: ConfigContainer) -> list[str]:
    """Return the errors of Megatron Core, part by part."""
    steps = {
        "model": lambda: transformer(config.model),
        "optimizer": lambda: to_megatron(config.optimizer),
        "ddp": lambda: to_megatron(config.ddp),
        "scheduler": lambda: build_scheduler(
            Weights(),
            scheduler=config.scheduler,
            optimizer_config=config.optimizer,
            steps=scheduler_steps(config.train, config.scheduler),
        ),
    }
    refused = []
    for name, construct in steps.items():
        try:
            construct()
        except Exception as error:  # noqa: BLE001 - Megatron refuses in many ways
            refused.append(f"{name}: {type(error).__name__}: {error}")
    return refused


@settings(max_examples=int(os.environ.get("MB_EXAMPLES", "300")), deadline=None)
@given(values=settings_of_runs())
def test_what_check_accepts_is_built_and_what_megatron_refuses_was_refused(values: dict[str, Any]) -> None:
    ours, resolved = refused_by_check(build(values))
    megatrons = refused_by_megatron(resolved)
    event(f"check {'refuses' if ours else 'accepts'}, Megatron {'refuses' if megatrons else 'accepts'}")
    assert ours or not megatrons
    if not ours:
        transformer_config(resolved.model, device=torch.device("cuda"))  # as on a GPU: nothing is replaced


@pytest.fixture(params=[1, 4, 8, 12])
def world(request: pytest.FixtureRequest):
    """A world of so many ranks, of which this process is the first; nothing is ever sent."""
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=request.param)
    yield request.param
    torch.distributed.destroy_process_group()


def groups_refused(sizes: dict[str, int | None]) -> bool:
    """Return whether Megatron Core cannot create process groups of these sizes."""
    try:
        parallel_state.initialize_model_parallel(**sizes, create_gloo_process_groups=False)
    except (AssertionError, RuntimeError, ValueError):
        return True
    finally:
        parallel_state.destroy_model_parallel()
    return False


def test_layouts_that_check_accepts_are_those_that_megatron_can_make(world: int) -> None:
    """Compare all 324 layouts in both directions."""
    shape = {"num_layers": 4, "num_attention_heads": 12, "seq_length": 12, "num_moe_experts": 4}
    differing = []
    for tp, pp, vp, cp, ep, etp in itertools.product(
        (1, 2, 3), (1, 2), (None, 2), (1, 2, 3), (1, 2, 4), (None, 1, 2)
    ):
        sizes = {
            "tensor_model_parallel_size": tp,
            "pipeline_model_parallel_size": pp,
            "virtual_pipeline_model_parallel_size": vp,
            "context_parallel_size": cp,
            "expert_model_parallel_size": ep,
            "expert_tensor_parallel_size": etp,
        }
        model = {**shape, **sizes, "sequence_parallel": tp > 1}
        refused = bool(mb_config.check({"model": model}, SIZE_RULES, facts={"world_size": world}))
        if refused != groups_refused(sizes):
            differing.append(sizes)
    assert differing == []
