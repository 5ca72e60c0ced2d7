"""Functions that ranks run in tests of adapters on a part of a model. Imports little."""

from dataclasses import replace


def adapters_on_this_stage(settings, targets):
    """Build this rank's stage of a pipeline and install LoRA; return the layers with adapters, or the error."""
    return adapters_on_this_rank(
        {**settings, "pipeline_model_parallel_size": 2, "pipeline_dtype": "float32"}, targets
    )


def adapters_with_parallel_experts(settings, targets):
    """Install LoRA in a model whose experts ranks share; return name in the complete model -> initial values of A."""
    import torch
    from tiny_training import start

    from mb_host.megatron.layers import host_block_spec
    from mb_models import GPTModelConfig, GPTModelProvider
    from mb_models.peft.config import LoRA
    from mb_models.peft.selection import select_layers

    groups = start(settings)
    provider = GPTModelProvider(
        GPTModelConfig(**settings), layer_spec=host_block_spec, device=torch.device("cpu")
    )
    [chunk] = provider.provide_chunks(groups)
    section = LoRA(dim=2, target_modules=targets)
    names = select_layers(chunk, section).names
    torch.manual_seed(5)
    section.install([chunk])
    return {
        names[name.partition(".adapter.")[0]]: value.tolist()
        for name, value in chunk.named_parameters()
        if name.endswith("lora_a")
    }


def adapters_on_this_rank(settings, targets, folder=None):
    """Build this rank's part of a model and install LoRA; return the layers with adapters, or the error.

    `settings` without a number of layers are those of a small MIMO model. With `folder`, the adapters are saved there
    and loaded again.
    """
    import torch
    from megatron.core import dist_checkpointing
    from mimo_ranks import SECTION
    from tiny_training import start

    from mb_host.megatron.layers import host_block_spec
    from mb_models import GPTModelConfig, GPTModelProvider, MimoModelProvider
    from mb_models.errors import PeftError
    from mb_models.peft.config import LoRA

    groups = start(settings)
    if "num_layers" in settings:
        section, provider = GPTModelConfig(**settings), GPTModelProvider
    else:
        section, provider = replace(SECTION, **settings), MimoModelProvider
    chunks = provider(section, layer_spec=host_block_spec, device=torch.device("cpu")).provide_chunks(groups)
    try:
        LoRA(dim=2, target_modules=targets).install(chunks)
    except PeftError as error:
        return str(error)
    if folder is not None:
        dist_checkpointing.save(chunks[0].sharded_state_dict(), folder)
        before = {name: value.clone() for name, value in chunks[0].named_parameters()}
        for value in chunks[0].parameters():
            value.data.zero_()
        chunks[0].load_state_dict(dist_checkpointing.load(chunks[0].sharded_state_dict(), folder))
        assert all(torch.equal(value, before[name]) for name, value in chunks[0].named_parameters())
    return [name for name, _ in chunks[0].named_parameters() if name.endswith("lora_a")]


def trained_grouped(settings, folder, section, save=None, steps=3):
    """Train the adapters in a checkpoint with a layout, and save the model; return losses and logits."""
    import torch
    from megatron.core import dist_checkpointing
    from megatron.core.tensor_parallel import gather_from_tensor_model_parallel_region
    from tiny_training import prepare, start

    from mb_host.megatron.layers import host_block_spec
    from mb_models import GPTModelConfig, GPTModelProvider

    groups = start(settings)
    provider = GPTModelProvider(
        GPTModelConfig(**settings), layer_spec=host_block_spec, device=torch.device("cpu")
    )
    [chunk] = provider.provide_chunks(groups)
    section.install([chunk])
    metadata = {"dp_cp_group": groups.dp_cp}
    chunk.load_state_dict(dist_checkpointing.load(chunk.sharded_state_dict(metadata=metadata), folder))
    tokens = torch.arange(80).reshape(4, 20) * 7 % 96
    rows = tokens.chunk(groups.dp.size())[groups.dp.rank()]
    batch = {
        "tokens": rows,
        "labels": rows.roll(-1, dims=1),
        "loss_mask": torch.ones(rows.shape),
        "position_ids": torch.arange(20).expand(len(rows), -1),
    }
    losses = []
    if steps:
        training = prepare(provider, [chunk], groups, lr=1e-2)
        for _ in range(steps):
            losses.append(training.step(lambda: iter([batch]), micro_batches=1, micro_batch_size=len(rows)))
    if save:
        dist_checkpointing.save(chunk.sharded_state_dict(metadata=metadata), save)
    with torch.no_grad():
        logits = chunk(tokens, torch.arange(20).expand(4, -1), None)
        return losses, gather_from_tensor_model_parallel_region(logits, group=groups.tp)
