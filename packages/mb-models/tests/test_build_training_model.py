"""Training models: one function builds model, optimizer and scheduler of every family."""

from dataclasses import replace
from itertools import repeat

import mimo_ranks
import pytest
import torch
from megatron.core import tensor_parallel
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig

from mb_models import (
    DataParallelSetup,
    GPTModelConfig,
    ModelConfigError,
    ModuleGroups,
    OptimizerSetup,
    build_training_model,
    parameter_count,
)
from mb_models.families import GPT
from mb_models.mimo.config import ModuleRanks, has_module_layouts
from mb_models.peft.config import LoRA
from mb_models.training.setup import data_groups

CPU = torch.device("cpu")
ADAM = OptimizerConfig(optimizer="adam", lr=3e-3)
FP32_GRADIENTS = DistributedDataParallelConfig(grad_reduce_in_fp32=True)


def batch():
    tokens = torch.randint(128, (4, 33), generator=torch.Generator().manual_seed(0))
    return {
        "tokens": tokens[:, :-1],
        "labels": tokens[:, 1:],
        "loss_mask": torch.ones(4, 32),
        "position_ids": torch.arange(32).expand(4, 32),
    }


def build(settings, groups, *, optimizer=None, ddp=FP32_GRADIENTS, **arguments):
    tensor_parallel.model_parallel_cuda_manual_seed(1234)
    return build_training_model(
        GPTModelConfig(**settings),
        groups=groups,
        optimizer=optimizer or OptimizerSetup(config=ADAM),
        ddp=DataParallelSetup(config=ddp),
        device=CPU,
        **arguments,
    )


def train(model, *, steps):
    """Train on one repeated batch with Megatron's schedule; return the losses."""
    losses, schedule = [], dict(model.schedule)
    forward_backward = schedule.pop("forward_backward_func")
    for _ in range(steps):
        for chunk in model.chunks:
            chunk.zero_grad_buffer()
        model.optimizer.zero_grad()
        [report] = forward_backward(
            forward_step_func=model.forward_step(),
            data_iterator=repeat(batch()),
            model=model.chunks,
            num_microbatches=1,
            seq_length=32,
            micro_batch_size=4,
            forward_only=False,
            **schedule,
        )
        model.optimizer.step()
        losses.append(float(report["lm loss"][0] / report["lm loss"][1]))
    return losses


@pytest.mark.parametrize("overlap", [False, True])
def test_a_built_model_trains(tiny, groups, overlap):
    ddp = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        use_distributed_optimizer=overlap,
        overlap_grad_reduce=overlap,
        overlap_param_gather=overlap,
        align_param_gather=overlap,
    )
    adam = OptimizerConfig(optimizer="adam", lr=3e-3, use_distributed_optimizer=overlap)
    model = build(tiny, groups, ddp=ddp, optimizer=OptimizerSetup(config=adam))
    assert (model.parameters, model.vocab_size) == (parameter_count(GPTModelConfig(**tiny)), 128)
    assert (model.groups, model.checkpoint_groups, model.modules) == (groups, groups, None)
    assert (model.transformer.param_sync_func is not None, data_groups(groups)) == (overlap, groups)
    losses = train(model, steps=6)
    assert losses[-1] < losses[0] - 0.3


def test_overlapped_and_plain_training_agree(tiny, groups):
    overlapped = DistributedDataParallelConfig(grad_reduce_in_fp32=True, overlap_grad_reduce=True)
    assert train(build(tiny, groups), steps=3) == train(build(tiny, groups, ddp=overlapped), steps=3)


def test_scheduler_and_overrides_come_from_their_factories(tiny, groups):
    seen = []
    setup = OptimizerSetup(
        config=ADAM,
        config_overrides=lambda chunks: seen.append(chunks),
        scheduler=lambda optimizer: ("scheduler of", optimizer),
    )
    model = build(tiny, groups, optimizer=setup)
    assert seen == [model.chunks]
    assert model.scheduler == ("scheduler of", model.optimizer)


def test_the_section_keeps_its_layer_implementation(tiny, groups):
    section = GPTModelConfig(**{**tiny, "transformer_impl": "transformer_engine"})
    model = build_training_model(section, groups=groups, optimizer=OptimizerSetup(config=ADAM), device=CPU)
    assert (section.transformer_impl, model.transformer.transformer_impl) == ("transformer_engine", "local")


def test_a_hook_adds_adapters_before_wrapping(tiny, groups):
    model = build(tiny, groups, pre_wrap_hook=LoRA(dim=4).install)
    trained = [name for name, value in model.chunks[0].named_parameters() if value.requires_grad]
    assert trained
    assert all(".adapter." in name for name in trained)


class CountedSection(GPTModelConfig):
    """Section whose family has no formula for its parameters."""

    def model_family(self):
        return replace(GPT, parameters=None)


@pytest.mark.parametrize("section", [GPTModelConfig, CountedSection])
def test_adapters_are_not_among_the_parameters(tiny, groups, section):
    tensor_parallel.model_parallel_cuda_manual_seed(1234)
    model = build_training_model(
        section(**tiny),
        groups=groups,
        optimizer=OptimizerSetup(config=ADAM),
        device=CPU,
        pre_wrap_hook=LoRA(dim=4).install,
    )
    counted = {name: each.numel() for name, each in model.chunks[0].named_parameters()}
    assert model.parameters == sum(size for name, size in counted.items() if ".adapter." not in name)
    assert model.parameters < sum(counted.values())


def test_several_hooks_are_called_in_order(tiny, groups):
    seen = []
    build(
        tiny,
        groups,
        pre_wrap_hook=[lambda chunks: seen.append("first"), lambda chunks: seen.append("second")],
    )
    assert seen == ["first", "second"]


def test_modules_with_per_module_parallelism_match_one_rank(groups, pool, tmp_path):
    expected = mimo_ranks.train_together(str(tmp_path), groups)
    found = pool.run(mimo_ranks.train_built, str(tmp_path))
    losses = next(losses for losses, _, _ in found if losses)
    assert losses == pytest.approx(expected[0], abs=1e-5)
    assert found[0][2] == "encoder on rank 0 (tp 1, dp 1), language model on rank 1 (tp 1, dp 1)"
    assert [positions for _, positions, _ in found] == [
        {"checkpoint": (rank, 2, {"vision": 0, "language": 1}), "data": (0, 1, 1)} for rank in range(2)
    ]


def test_a_hook_on_modules_with_per_module_parallelism_is_rejected(groups):
    modules = ModuleGroups.open(vision=ModuleRanks(), language=ModuleRanks(), backend="gloo")
    with pytest.raises(ModelConfigError, match="pre_wrap_hook: is set"):
        build_training_model(
            mimo_ranks.SECTION,
            groups=modules,
            optimizer=OptimizerSetup(config=ADAM),
            device=CPU,
            pre_wrap_hook=print,
        )


def test_only_mimo_sections_have_module_layouts(tiny):
    assert not has_module_layouts(GPTModelConfig(**tiny))
    assert not has_module_layouts(mimo_ranks.SECTION)
