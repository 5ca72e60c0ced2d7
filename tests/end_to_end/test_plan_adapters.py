"""Plans of runs with adapters: FLOPs are those that torch counts, bytes those of Megatron's wrapper and optimizer."""

from collections.abc import Iterator

import pytest
import torch
from any_rank import DENSE, EP, ETP, MLA, MODERN, MOE, PP, SHARED, SP, TP, build, standing_in
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from mb_models.peft.config import CanonicalLoRA, DoRA, LoRA
from mb_models.training.wrap import wrap_ddp
from mb_plan import flops_per_token, make_plan, read_adapters, read_shape

LENGTH, BATCH = 32, 2
BF16 = {"bf16": True, "params_dtype": torch.bfloat16}
SECTIONS = {
    "lora": LoRA(dim=8),
    "canonical": CanonicalLoRA(dim=8),
    "dora": DoRA(dim=8),
    "one part": CanonicalLoRA(dim=8, target_modules=["linear_v"]),
    "output of attention": LoRA(dim=8, target_modules=["linear_proj"]),
    "last layer": LoRA(dim=8, target_modules=["*.layers.3.*.linear_fc1"]),
    "output layer": LoRA(dim=8, target_modules=["output_layer"]),
    "all but one": LoRA(dim=8, target_modules=[], exclude_modules=["linear_fc2"]),
}
COUNTED = [
    *((MODERN, name) for name in SECTIONS),
    (MLA, "output of attention"),
    (MOE, "lora"),
    ({**MOE, "moe_grouped_gemm": True}, "lora"),
    (SHARED, "canonical"),
    (DENSE, "last layer"),
]


@pytest.mark.parametrize(("model", "section"), COUNTED)
def test_operations_are_those_that_torch_counts(model, section):
    section = SECTIONS[section]
    with standing_in(0, 1, model) as groups:
        (chunk,) = build(model, groups)
        section.install([chunk])
        tokens = torch.randint(0, model["vocab_size"], (BATCH, LENGTH))
        positions = torch.arange(LENGTH).expand(BATCH, LENGTH)
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            chunk(tokens, positions, None, labels=tokens).sum().backward()
    adapters, shape = read_adapters(section, model), read_shape(model)
    parts = flops_per_token(shape, seq_length=LENGTH, adapters=adapters)
    parts["attention_core"] *= 2  # torch counts the masked scores as well
    counted = counter.get_total_flops() / (BATCH * LENGTH)
    if shape.experts:  # Megatron Core multiplies the gradient of a router's weight even if it is frozen
        counted -= 2 * shape.num_layers * shape.hidden * shape.experts.number
    if adapters.magnitude:  # the norms of W + B A, which a microbatch computes once, are not model FLOPs
        assert sum(parts.values()) < counted
    else:
        assert sum(parts.values()) == pytest.approx(counted, rel=1e-9)


BUILT = {
    "lora": (MODERN, "lora", 1),
    "canonical, tp2 pp2": ({**MODERN, TP: 2, PP: 2}, "canonical", 4),
    "dora, tp2 sequence parallel": ({**MODERN, **SP, TP: 2}, "dora", 2),
    "experts ep2 tp2": ({**MOE, **SP, TP: 2, EP: 2, ETP: 1}, "lora", 2),
    "grouped experts ep2 tp2": ({**MOE, **SP, "moe_grouped_gemm": True, TP: 2, EP: 2, ETP: 1}, "lora", 2),
}


@pytest.mark.parametrize("name", BUILT)
def test_only_adapters_have_gradients_and_a_state(name):
    model, section, world = BUILT[name]
    model = {**model, **BF16}
    section = SECTIONS[section]
    optimizer = {"bf16": True, "lr": 1e-3}
    plan = make_plan({"model": model, "optimizer": optimizer, "peft": section}, world_size=world)
    for rank in range(world):
        with standing_in(rank, world, model) as groups:
            stage = plan.stages[groups.pp.rank()].rank_bytes
            found = built(model, section, optimizer, groups)
            # Megatron pads a buffer of gradients to a multiple of 128 bytes
            assert found[0] == stage.weights
            assert stage.gradients <= found[1] < stage.gradients + 1024
            assert found[2] == stage.optimizer


def built(model, section, optimizer, groups) -> tuple[int, int, int]:
    """Return the bytes of weights, gradient buffers and optimizer state after a step."""
    chunks = build(model, groups)
    section.install(chunks)
    wrapped = wrap_ddp(chunks, DistributedDataParallelConfig(), pg_collection=groups)
    made = get_megatron_optimizer(
        OptimizerConfig(**optimizer), wrapped, pg_collection=groups, use_gloo_process_groups=False
    )
    for chunk in wrapped:
        for parameter in chunk.parameters():
            if parameter.requires_grad:
                parameter.main_grad.zero_()
    made.step()
    buffers = [buffer for chunk in wrapped for buffer in (*chunk.buffers, *chunk.expert_parallel_buffers)]
    weights = sum(size(parameter) for chunk in wrapped for parameter in chunk.parameters())
    return weights, sum(size(buffer.grad_data) for buffer in buffers), sum(map(size, state(made)))


def state(optimizer) -> Iterator[torch.Tensor]:
    """Yield master weights and moments."""
    for one in getattr(optimizer, "chained_optimizers", [optimizer]):
        for group in one.optimizer.param_groups:
            for parameter in group["params"]:
                yield parameter
                yield from (value for name, value in one.optimizer.state[parameter].items() if name != "step")


def size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
