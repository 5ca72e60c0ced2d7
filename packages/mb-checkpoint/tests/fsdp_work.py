"""Work of the ranks under Megatron-FSDP; fast to import, like `rank_work`."""

from rank_work import new_run


def saved_state(shape, section, steps):
    """Train, save, continue training; return losses and the fingerprint at the end, and the files of the checkpoint."""
    run = new_run(shape, **section)
    before = run.train(steps)
    saved = run.save()
    saved = run.manager.finalize_async_saves(blocking=True, terminate=True) or saved
    files = sorted(path.name for path in saved.path.iterdir())
    return before, run.train(steps), run.fingerprint(), files


def resume_training(shape, section, steps):
    """Load into a run with other weights, and train; return losses, fingerprint and the record."""
    run = new_run({"seed": 99, **shape}, **section)
    loaded = run.load()
    return run.train(steps), run.fingerprint(), loaded


def weights_of(shape, folder):
    """Load only the weights into a run with other ones; return the full tensors by their names in the model."""
    from mb_checkpoint import load_model_weights

    run = new_run({"seed": 99, **shape})
    load_model_weights(folder, run.model)
    return full_weights(run)


def trained_weights(shape, section, steps):
    """Train and save; return the full weights by their names in the model."""
    run = new_run(shape, **section)
    run.train(steps)
    run.save()
    return full_weights(run)


def full_weights(run):
    """Return the weights by their names in the model, as lists; shards of all ranks are concatenated."""
    from torch.distributed.tensor import DTensor

    from mb_checkpoint.collectives import gather

    found = {}
    for name, value in run.weights().items():
        sharded = isinstance(value, DTensor)  # among all ranks, in order
        rows = gather(value.detach().to_local().tolist()) if sharded else [value.tolist()]
        found[name.replace("module.", "")] = [row for part in rows for row in part]
    return found


def other_model(shape, section, options):
    """Load into a model of another shape; return notes, unchanged matrices, and those with optimizer state."""
    run = new_run({"seed": 99, **shape}, **section)
    before = full_weights(run)
    record = run.load(**options)
    after = full_weights(run)
    same = [name for name in before if before[name] == after[name]]
    known = [name for name, value in run.weights().items() if value in run.optimizer.state]
    return record.notes, sorted(name for name in same if "layernorm" not in name), known


def resumed_without_optimizer(shape, section):
    """Load and train; return the notes and the number of optimizer tensors before the step."""
    run = new_run({"seed": 99, **shape}, **section)
    notes, had = run.load().notes, len(run.optimizer_tensors())
    run.train(1)
    return notes, had < len(run.optimizer_tensors())


def offsets(shape):
    """Return the positions of the weights of this rank by this package and by Megatron-FSDP."""
    from megatron.core.distributed.fsdp.src.megatron_fsdp.uneven_dtensor import (
        gather_and_compute_chunk_metadata,
    )

    from mb_checkpoint.megatron import fsdp
    from mb_checkpoint.megatron.groups import CheckpointGroups

    run = new_run(shape)
    groups = CheckpointGroups.of(None)
    ours = fsdp.weights(run.model, groups)
    theirs, missing = {}, []
    for name, parameter in run.weights().items():
        place = gather_and_compute_chunk_metadata(parameter)
        key = fsdp.MODEL_PREFIX + name.replace("module.", "")
        if key not in ours:
            missing.append(name.rpartition("layers.0.")[2])
        elif parameter.detach().to_local().numel():
            theirs[key] = tuple(place.offsets), tuple(place.sizes)
    found = {key: (ours[key].offsets, tuple(ours[key].data.shape)) for key in theirs}
    return found == theirs, len(found), missing


def overlapping():
    """Plan two blocks that overlap and leave a gap."""
    import torch

    from mb_checkpoint.megatron.shards import Shard, ShardPlanner

    rank = torch.distributed.get_rank()
    entry = Shard(data=torch.ones(3), offsets=(rank,), shape=(6,))
    ShardPlanner(to_lowest=False).divide({"weight": entry})


def same_plan():
    """Plan twice with equal entries, and once with others; return the items that this rank writes each time."""
    import torch

    from mb_checkpoint.megatron.shards import Shard, ShardPlanner

    rank = torch.distributed.get_rank()
    entries = {"own": Shard(data=torch.ones(2), offsets=(2 * rank,), shape=(4,)), "shared": "text"}
    planner = ShardPlanner(to_lowest=True)
    plans = [planner.divide(each)[0] for each in (entries, entries, {**entries, "other": rank})]
    return plans[0] is plans[1], [sorted(item.index.fqn for item in plan) for plan in plans]


def mismatched_slices():
    """Collect weights of which the second rank has other slices than Megatron-FSDP reports."""
    import torch

    from mb_checkpoint.megatron import fsdp
    from mb_checkpoint.megatron.groups import CheckpointGroups

    run = new_run({"fsdp": "optim_grads_params"})
    for parameter in run.weights().values():
        if torch.distributed.get_rank() == 1:
            parameter.megatron_fsdp_slice = slice(0, 1)
    fsdp.weights(run.model, CheckpointGroups.of(None))


def read_missing_object(folder):
    """Read an object of a checkpoint that the second rank does not find."""
    from pathlib import Path

    import torch

    from mb_checkpoint.formats.manifest import read_manifest
    from mb_checkpoint.load.verified_reads import IN_MODEL, VerifiedReads
    from mb_checkpoint.megatron.shards import read_entries

    path = Path(folder) / ("gone" * torch.distributed.get_rank())
    reads = VerifiedReads(path, read_manifest(Path(folder)))
    reads.read(lambda: read_entries(path, {"iteration": None}), after=IN_MODEL)


def request_unknown_tensor():
    """Request a tensor that a checkpoint does not hold."""
    from pathlib import Path

    from mb_checkpoint.load.restore_shards import compare

    compare({"ours": (3,)}, {"theirs": (3,)}, path=Path("run"), may_lack=True, may_have_more=True)


def fused_layer_of_other_tp_size():
    """Request a fused layer that another number of tensor-parallel ranks stored."""
    from pathlib import Path

    import torch

    from mb_checkpoint import mcore
    from mb_checkpoint.load.restore_shards import reject_fused_layer_resharding
    from mb_checkpoint.megatron.groups import CheckpointGroups

    model = torch.nn.Sequential()
    model.in_proj = torch.nn.Linear(1, 1)
    new_run({})
    layout = {"parallel_layout": {"tensor_model_parallel_size": 2}}
    contents = mcore.CheckpointContents(common=layout, shapes={}, objects=frozenset())
    reject_fused_layer_resharding(Path("run"), [model], CheckpointGroups.of(None), contents)


def reject_before_making_state(folder):
    """Load mismatching weights, then optimizer state; return the errors and the number of parameters with state."""
    from dataclasses import replace
    from pathlib import Path

    from rank_work import error_of

    from mb_checkpoint import CheckpointConfig, CheckpointLoadContext
    from mb_checkpoint.formats.metadata import read_contents
    from mb_checkpoint.load.restore_shards import ShardRestorer
    from mb_checkpoint.megatron.groups import CheckpointGroups
    from mb_checkpoint.megatron.optimizer import optimizer_parts

    run = new_run({"fsdp": "optim_grads_params"})
    context = CheckpointLoadContext(
        state=run.state, model=run.model, optimizer=run.optimizer, opt_param_scheduler=run.scheduler
    )
    section = CheckpointConfig(ckpt_format="fsdp_dtensor", strict_fsdp_dtensor_load=True)
    stored = read_contents(Path(folder), shards=True)

    def load(lacking):
        shapes = {name: shape for name, shape in stored.shapes.items() if lacking not in name}
        groups, contents = CheckpointGroups.of(None), replace(stored, shapes=shapes)
        ShardRestorer(context, section, groups, Path(folder), contents=contents, resume=True).run()

    found = [error_of(load, name)[:2] for name in ("model.module.embedding", "word_embeddings.weight.exp")]
    return found, sum(len(part.optimizer.state) for part in optimizer_parts(run.optimizer))


def adapters_from_complete_checkpoint(folder):
    """Load adapters from a checkpoint that holds more, strictly; return the notes and the changed tensors."""
    run = new_run(
        {"fsdp": "optim_grads_params", "seed": 99},
        load=folder,
        ckpt_format="fsdp_dtensor",
        strict_fsdp_dtensor_load=True,
        load_optim=False,
        load_rng=False,
    )
    before = full_weights(run)
    notes = run.load(adapter_key_filter=lambda name: "linear_proj" in name).notes
    after = full_weights(run)
    return notes, sorted(name.rpartition("layers.")[2] for name in before if before[name] != after[name])


def save_fsdp_to_local_store(ckpt_format):
    """Save a model in Megatron-FSDP as a local checkpoint."""
    from tiny_state import MemoryLocalStore

    from mb_checkpoint import CheckpointConfig, CheckpointSaveContext
    from mb_checkpoint.local.checkpoints import save_local

    run = new_run({"fsdp": "optim_grads_params"})
    context = CheckpointSaveContext(
        state=run.state,
        model=run.model,
        optimizer=run.optimizer,
        opt_param_scheduler=run.scheduler,
        num_floating_point_operations_so_far=0,
    )
    save_local(context, CheckpointConfig(ckpt_format=ckpt_format), MemoryLocalStore())


def local_shards():
    """Return whether shards have one identity outside and inside the block, as torch 2.15 would return them."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    from mb_checkpoint.megatron.shards import same_local_shards

    mesh = init_device_mesh("cpu", (1,))
    parameter = torch.nn.Parameter(DTensor.from_local(torch.ones(4), mesh, [Shard(0)]))
    to_local = DTensor.to_local
    DTensor.to_local = lambda self: self._local_tensor.view_as(self._local_tensor)
    try:
        with torch.no_grad():
            outside = parameter.to_local() is parameter.to_local()
            with same_local_shards():
                inside = parameter.to_local() is parameter.to_local()
    finally:
        DTensor.to_local = to_local
    with same_local_shards():
        return outside, inside, parameter.to_local().requires_grad
