"""Planned gradient and optimizer bytes are those of Megatron's wrapper and optimizers, built for every rank in turn."""

import contextlib
from collections.abc import Iterator
from dataclasses import MISSING, fields

import pytest
import torch
from any_rank import EP, ETP, MODERN, MOE, PP, SP, TIED, TP, VP, build, standing_in
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.process_groups_config import ProcessGroupCollection

from mb_config import ConfigContainer, SchedulerConfig, TrainingConfig, runtime_config_update
from mb_config import DistributedDataParallelConfig as DdpConfig
from mb_config import OptimizerConfig as OptimizerSection
from mb_models.training.wrap import wrap_ddp
from mb_plan import make_plan
from mb_plan.memory.parameter_storage import parameter_storage

# every tensor is a multiple of 128, so that Megatron pads nothing
EVEN = {**MODERN, "hidden_size": 128, "ffn_hidden_size": 128, "vocab_size": 512}
EVEN_MOE = {**MOE, "hidden_size": 128, "ffn_hidden_size": 128, "vocab_size": 512, "moe_ffn_hidden_size": 64}
BF16 = {"bf16": True, "params_dtype": torch.bfloat16}
SHARDED = {"use_distributed_optimizer": True}
FP32_GRADS = {"grad_reduce_in_fp32": True}

CASES = {
    "float32": (EVEN, {}, 2),
    "bfloat16": ({**EVEN, **BF16}, {}, 2),
    "bfloat16, float32 gradients": ({**EVEN, **BF16, **TIED, PP: 2}, FP32_GRADS, 4),
    "float32, sharded": (EVEN, SHARDED, 4),
    "bfloat16, sharded": ({**EVEN, **BF16, TP: 2}, {**SHARDED, **FP32_GRADS}, 8),
    "bfloat16, sharded, interleaved": ({**EVEN, **BF16, PP: 2, VP: 2}, {**SHARDED, **FP32_GRADS}, 8),
    "experts, sharded": ({**EVEN_MOE, **BF16, EP: 2}, SHARDED, 4),
    "experts on ranks of their own, sharded": (
        {**EVEN_MOE, **BF16, **SP, TP: 2, EP: 2, ETP: 1}, {**SHARDED, **FP32_GRADS}, 8
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_gradients_and_optimizer_state_take_what_is_planned(name):
    model, ddp, world = CASES[name]
    optimizer = {"bf16": model.get("bf16", False), "lr": 1e-3, **(SHARDED if ddp.get(*SHARDED) else {})}
    plan = make_plan({"model": model, "ddp": ddp, "optimizer": optimizer}, world_size=world)
    for rank in range(0, world, max(1, world // 4)):
        with standing_in(rank, world, model) as groups:
            stage = plan.stages[groups.pp.rank()].rank_bytes
            assert built(model, ddp, optimizer, groups) == (stage.weights, stage.gradients, stage.optimizer)


def built(model, ddp, optimizer, groups: ProcessGroupCollection) -> tuple[int, int, int]:
    """Return the bytes of weights, gradient buffers and optimizer state after a step."""
    wrapped = wrap_ddp(build(model, groups), DistributedDataParallelConfig(**ddp), pg_collection=groups)
    made = get_megatron_optimizer(
        OptimizerConfig(**optimizer), wrapped, pg_collection=groups, use_gloo_process_groups=False
    )
    for chunk in wrapped:
        for parameter in chunk.parameters():
            parameter.main_grad.zero_()
    made.step()
    weights = sum(size(parameter) for chunk in wrapped for parameter in chunk.parameters())
    buffers = [buffer for chunk in wrapped for buffer in (*chunk.buffers, *chunk.expert_parallel_buffers)]
    return weights, sum(size(buffer.grad_data) for buffer in buffers), sum(map(size, state(made)))


def state(optimizer) -> Iterator[torch.Tensor]:
    """Yield master weights that are separate tensors, and moments."""
    for one in getattr(optimizer, "chained_optimizers", [optimizer]):
        for group in one.optimizer.param_groups:
            for parameter in group["params"]:
                if one.config.bf16:
                    yield parameter
                yield from (value for name, value in one.optimizer.state[parameter].items() if name != "step")


def size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


@pytest.mark.parametrize(
    ("precision", "in_the_optimizer"),
    [
        ("bf16_mixed", True),
        ("bf16_with_fp8_delayed_scaling_mixed", True),
        ("bf16_with_fp8_current_scaling_mixed", False),
    ],
)
def test_main_weights_are_counted_where_megatron_keeps_them(precision, in_the_optimizer):
    config = ConfigContainer(
        mixed_precision=precision,
        train=TrainingConfig(train_iters=100, global_batch_size=8, micro_batch_size=2),
        model=dict(MODERN),
        optimizer=OptimizerSection(
            lr=1e-3, use_precision_aware_optimizer=True, use_distributed_optimizer=True
        ),
        ddp=DdpConfig(use_distributed_optimizer=True),
        scheduler=SchedulerConfig(lr_warmup_iters=10),
        dataset=None,
        logger=None,
        tokenizer=None,
        checkpoint=None,
    )
    runtime_config_update(config, world_size=1, rules=())
    section = config.optimizer
    megatron = OptimizerConfig.__new__(OptimizerConfig)  # its constructor needs Transformer Engine
    for each in fields(OptimizerConfig):
        setattr(megatron, each.name, None if each.default is MISSING else each.default)
    for name in (
        "optimizer",
        "bf16",
        "fp8_recipe",
        "use_precision_aware_optimizer",
        "use_distributed_optimizer",
    ):
        setattr(megatron, name, getattr(section, name))
    with contextlib.suppress(RuntimeError):
        megatron.__post_init__()
    assert megatron.use_precision_aware_optimizer_no_fp8_or_ds_fp8 is in_the_optimizer
    storage = parameter_storage(config.model, optimizer=section, ddp=config.ddp)
    assert (
        storage.optimizer == (2 if in_the_optimizer else 4) + 8
    )  # remainders of 16 bits, or float32; two moments
