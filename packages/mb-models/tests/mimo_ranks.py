"""Functions that ranks run in tests of per-module parallelism: build, load the common weights, train."""

import dataclasses

import torch
from megatron.core import dist_checkpointing, tensor_parallel
from megatron.core.distributed import DistributedDataParallelConfig, finalize_model_grads
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel.schedules import forward_backward_no_pipelining

from mb_host.megatron.layers import host_block_spec
from mb_models import (
    DataParallelSetup,
    LayerChoice,
    MimoForwardStep,
    MimoModelConfig,
    MimoModelProvider,
    MimoModules,
    ModuleGroups,
    ModuleRanks,
    OptimizerSetup,
    build_training_model,
    wrap_ddp,
)
from mb_models.mimo.provider import VISION
from mb_models.training.setup import data_groups

CPU = torch.device("cpu")
STEPS, MICRO_BATCH, MICRO_BATCHES = 3, 4, 2
ADAM = OptimizerConfig(optimizer="adam", lr=3e-3, weight_decay=0.01, clip_grad=0.5)
SECTION = MimoModelConfig(
    num_layers=2,
    hidden_size=32,
    num_attention_heads=4,
    num_query_groups=2,
    ffn_hidden_size=48,
    position_embedding_type="rope",
    hidden_dropout=0.0,
    attention_dropout=0.0,
    seq_length=12,
    vocab_size=32,
    calculate_per_token_loss=True,
    transformer_impl="local",
    vision_num_layers=1,
    vision_hidden_size=32,
    vision_num_attention_heads=4,
    image_size=8,
    patch_size=4,
)


def batches():
    """Yield the complete microbatches, the same in each step."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(MICRO_BATCHES):
        tokens = torch.randint(32, (MICRO_BATCH, 13), generator=generator)
        images = torch.rand(MICRO_BATCH, 3, 8, 8, generator=generator)
        loss_mask = torch.zeros(MICRO_BATCH, 12)
        loss_mask[:, 3:] = 1
        loss_mask[0, 8:] = 0
        tokens[:, :4] = SECTION.image_token_id
        yield {
            "tokens": tokens[:, :-1],
            "labels": tokens[:, 1:].clamp(min=0),
            "loss_mask": loss_mask,
            "position_ids": torch.arange(12).expand(MICRO_BATCH, 12),
            "images": images,
        }


def train(model, optimizer, schedule, replicas, step=MimoForwardStep()):  # noqa: B008 - frozen
    """Train, and return the losses over all replicas of the language model, and the gradient norms, of each step."""
    losses, norms = [], []
    for _ in range(STEPS):
        model.zero_grad_buffer()
        optimizer.zero_grad()
        reports = schedule(
            forward_step_func=step,
            data_iterator=batches(),
            model=model,
            num_microbatches=MICRO_BATCHES,
            seq_length=SECTION.seq_length,
            micro_batch_size=MICRO_BATCH,
            forward_only=False,
        )
        _, norm, _ = optimizer.step()
        norms.append(norm)
        if reports:
            total = torch.stack([report["lm loss"] for report in reports]).sum(0)
            torch.distributed.all_reduce(total, group=replicas)
            losses.append((total[0] / total[1]).item())
    return losses, norms


def train_together(folder, groups):
    """Save the common weights, and train from them on one rank."""
    torch.manual_seed(1234)
    tensor_parallel.model_parallel_cuda_manual_seed(1234)
    provider = MimoModelProvider(SECTION, layer_spec=host_block_spec, device=CPU)
    chunks = provider.provide_chunks(groups)
    dist_checkpointing.save(chunks[0].sharded_state_dict(), folder)
    [model] = wrap_ddp(chunks, DistributedDataParallelConfig(grad_reduce_in_fp32=True), pg_collection=groups)
    provider.transformer.finalize_model_grads_func = finalize_model_grads
    optimizer = get_megatron_optimizer(ADAM, [model])
    return train(model, optimizer, forward_backward_no_pipelining, groups.dp)


def modules_on(vision, language, changes):
    """Return the modules on their ranks."""
    return MimoModules(
        dataclasses.replace(SECTION, **changes),
        groups=ModuleGroups.open(
            vision=ModuleRanks(**vision), language=ModuleRanks(**language), backend="gloo"
        ),
        layer_spec=host_block_spec,
        device=CPU,
    )


def first_weights(vision, language, changes):
    """Return initial weights: this rank's part of an encoder MLP, and the replicated position embeddings."""
    model = modules_on(vision, language, changes).provide(seed=1)
    encoder = model.modality_submodules[VISION].encoders["patches"]
    torch.distributed.barrier()  # gloo: a group must not be destroyed while another rank still connects to it
    model.destroy()
    part = encoder.decoder.layers[0].mlp.linear_fc1.weight
    return part.tolist(), encoder.position_embeddings.weight.tolist()


def train_modules(folder, vision, language):
    """Train from the common weights on the ranks of the modules."""
    modules = modules_on(vision, language, {})
    model = modules.provide(seed=1)
    model.load_state_dict(dist_checkpointing.load(model.sharded_state_dict(), folder))
    modules.wrap(model, DistributedDataParallelConfig(grad_reduce_in_fp32=True))
    replicas, step = modules.groups.main.dp, MimoForwardStep(rows=modules.groups.rows)
    try:
        return train(model, modules.optimizer(model, ADAM), modules.forward_backward(), replicas, step)
    finally:
        model.destroy()


def train_built(folder):
    """Train a built model with a module on each rank; return losses, positions and the description of the modules."""
    section = dataclasses.replace(SECTION, language_rank_offset=1)
    groups = ModuleGroups.of_section(section)
    built = build_training_model(
        section,
        groups=groups,
        optimizer=OptimizerSetup(config=ADAM),
        ddp=DataParallelSetup(config=DistributedDataParallelConfig(grad_reduce_in_fp32=True)),
        device=CPU,
        layers=LayerChoice(spec=host_block_spec, implementation="local", reason=""),
        seed=1,
    )
    [model] = built.chunks
    model.load_state_dict(dist_checkpointing.load(model.sharded_state_dict(), folder))
    built.optimizer.reload_model_params()
    stored, data = built.checkpoint_groups, data_groups(groups)
    layouts = {
        name.rpartition("_")[0] or name: own["first_rank"] for name, own in stored.module_layouts.items()
    }
    positions = {
        "checkpoint": (stored.tp.rank(), stored.tp.size(), layouts),
        "data": (data.dp.rank(), data.dp.size(), data.dp_cp.size()),
    }
    schedule = built.schedule["forward_backward_func"]
    try:
        losses, _ = train(model, built.optimizer, schedule, built.groups.dp, built.forward_step())
        return losses, positions, built.modules.describe()
    finally:
        model.destroy()


def resume(folder, vision, language):
    """Return the losses of steps after the first, and those of new modules that have loaded the state."""

    def built(seed):
        modules = modules_on(vision, language, {})
        model = modules.provide(seed=seed)
        modules.wrap(model, DistributedDataParallelConfig(grad_reduce_in_fp32=True))
        optimizer = modules.optimizer(model, ADAM)
        step = MimoForwardStep(rows=modules.groups.rows)

        def learn():
            return train(model, optimizer, modules.forward_backward(), modules.groups.main.dp, step)

        def state(*, loading):
            weights = model.sharded_state_dict()
            return {
                "model": weights,
                "optimizer": optimizer.sharded_state_dict({"model": weights}, is_loading=loading),
            }

        return model, optimizer, learn, state

    model, _, learn, state = built(seed=1)
    learn()
    dist_checkpointing.save(state(loading=False), folder)
    straight = learn()
    model.destroy()
    model, optimizer, learn, state = built(seed=2)
    loaded = dist_checkpointing.load(state(loading=True), folder)
    model.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])
    try:
        return straight, learn(), sorted(name for name, _ in model.named_parameters())
    finally:
        model.destroy()
