"""Work of the ranks of a pool on the tiny state; fast to import, like `rank_work`."""

import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))


def run_of(folder, step, **section):
    from tiny_state import TinyStateRun

    return TinyStateRun(folder, step, **section)


def save_steps(folder, steps, section, options):
    """Save some steps; return their folders relative to the root."""
    paths = []
    for step in steps:
        saved = run_of(folder, step, **section).save(**options)
        paths.append(str(saved.path.relative_to(folder)))
    return paths


def save_non_persistent(root, step, section):
    """Save a non-persistent checkpoint; return its folder."""
    return str(run_of(root, step, **section).save(non_persistent_ckpt=True).path)


def message_of_non_persistent(root, section):
    """Save a non-persistent checkpoint; return its log message."""
    return run_of(root, 4, **section).save(non_persistent_ckpt=True).message


def random_states_of_context_ranks(folder):
    """Save on two ranks that share a sequence; draw, load, draw: equal if each rank got its own state back."""
    import random

    import torch.distributed as dist
    from tiny_state import ALONE

    run = run_of(folder, 10)
    run.groups.dp, run.groups.cp = ALONE, dist.group.WORLD
    for _ in range(dist.get_rank() + 1):
        random.random()
    run.save()
    drawn = random.random()
    run.load()
    return drawn, random.random()


def load(folder, section, options=None):
    """Load; return source, step, the values of the weights, and the skipped folders with reasons."""
    run = run_of(folder, 1, **section)
    loaded = run.load(**(options or {}))
    passed = [(each.path.name, each.reason) for each in loaded.skipped]
    return loaded.source, loaded.step, sorted(run.model.values()), passed


def load_with_later_properties(folder):
    """Save and load where an index has tensor properties with `strides`, as torch 2.15 has; return source and step."""
    from unittest.mock import patch

    from torch.distributed.checkpoint.metadata import TensorProperties

    read = TensorProperties.__setstate__

    def with_strides(properties, state):
        read(properties, state)
        properties.strides = None

    run = run_of(folder, 10)
    run.save()
    with patch.object(TensorProperties, "__setstate__", with_strides):
        loaded = run.load()
    return loaded.source, loaded.step


def save_adapters(folder, step):
    """Save the weights that a filter accepts; return their names."""
    from mb_checkpoint.mcore import read_contents

    saved = run_of(folder, step).save(adapter_key_filter=is_adapter)
    return sorted(read_contents(saved.path).model_shapes)


def load_adapters(folder, base):
    """Load the base from one run and adapters from another; return source and both tensors' values."""
    run = run_of(folder, 1, pretrained_checkpoint=str(base))
    loaded = run.load(adapter_key_filter=is_adapter)
    return loaded.source, loaded.step, run.model.own[0, 0].item(), run.model.shared[0].item()


def is_adapter(name):
    return name == "shared"


class Loader:
    """Iterator whose iterable has a position."""

    def __init__(self, position=0):
        self.iterable = self
        self.position = position

    def save_state(self):
        return {"position": self.position}

    def restore_state(self, state):
        self.position = state["position"]


def read_missing_contents(folder, shards):
    """Read the contents of a checkpoint that rank 0 does not find."""
    import torch.distributed as dist

    from mb_checkpoint.formats.metadata import read_contents

    read_contents(Path(folder) / ("" if dist.get_rank() else "gone"), shards=shards)


def rewrite_manifest(path):
    """Replace the manifest by one of the current files of the folder."""
    from dataclasses import replace

    from mb_checkpoint.formats.manifest import read_manifest
    from mb_checkpoint.save.commit import fsync_and_write_manifest

    facts = replace(read_manifest(path), files=())
    (path / "manifest.json").unlink()
    fsync_and_write_manifest(path, facts)


class LostStreamError(Exception):
    """The stream of a data loader is lost."""


def save_lost_stream(folder):
    """Save while the second rank's loader cannot return its position; return the outcome and the remaining files."""
    import torch.distributed as dist

    class Broken(Loader):
        def save_state(self):
            raise LostStreamError("the stream is gone")

    loader = (Loader, Broken)[dist.get_rank()]()
    failed = run_of(folder, 10).save(train_data_iterator=loader)
    dist.barrier()  # the first rank clears away
    return type(failed).__name__, failed.message, sorted(each.name for each in folder.iterdir())


def layout_of_modules(folder):
    """Save a model whose modules have separate ranks; return the manifest's layout."""
    from mb_checkpoint.formats.manifest import read_manifest

    run = run_of(folder, 10)
    run.groups.module_layouts = {
        "vision": {"tensor_model_parallel_size": 1, "data_parallel_size": 1},
        "language": {"tensor_model_parallel_size": 2, "data_parallel_size": 1},
    }
    return read_manifest(run.save().path).layout


def stream_positions(folder, missing):
    """Save with a data loader, load into another; return the files and the restored position."""
    from dataclasses import replace

    import torch.distributed as dist

    from mb_checkpoint.formats.manifest import encode_manifest, read_manifest

    rank = dist.get_rank()
    saved = run_of(folder, 10).save(train_data_iterator=Loader(100 + rank))
    files = sorted(path.name for path in saved.path.glob("train_dataloader*"))
    dist.barrier()
    if missing and rank == 0:
        (saved.path / files[1]).unlink()
        manifest = read_manifest(saved.path)
        kept = tuple(entry for entry in manifest.files if entry.name != files[1])
        (saved.path / "manifest.json").write_bytes(encode_manifest(replace(manifest, files=kept)))
    dist.barrier()
    loader = Loader()
    run_of(folder, 1).load(train_data_iterator=loader)
    return files, loader.position


def stream_of_three(folder):
    """Load with two ranks the data loader positions of three ranks."""
    import torch.distributed as dist

    saved = run_of(folder, 10).save(train_data_iterator=Loader())
    if dist.get_rank() == 0:
        content = (saved.path / "train_dataloader_dprank001.pt").read_bytes()
        (saved.path / "train_dataloader_dprank002.pt").write_bytes(content)
        rewrite_manifest(saved.path)
    dist.barrier()
    run_of(folder, 1).load(train_data_iterator=Loader())


def flipped_bits(folder):
    """Flip a bit in each file of the newest of two checkpoints; return whether load found it, and the selected step."""
    from mb_checkpoint import select_checkpoint

    for step in (10, 20):
        run_of(folder, step).save()
    newest = select_checkpoint(folder).path
    outcomes = {}
    for path in sorted(newest.iterdir()):
        content = path.read_bytes()
        changed = bytearray(content)
        changed[len(content) // 2] ^= 16
        path.write_bytes(changed)
        source, step, values, passed = load(folder, {})
        outcomes[path.name] = (source, step, values, any(path.name in reason for _, reason in passed))
        path.write_bytes(content)
    return outcomes, load(folder, {})[:2]


def flipped_bit_in_a_named_checkpoint(folder):
    """Flip a bit in a checkpoint that is loaded by its own path."""
    import torch.distributed as dist

    path = run_of(folder, 10).save().path
    data = path / "__0_0.distcp"
    if dist.get_rank() == 0:
        content = bytearray(data.read_bytes())
        content[100] ^= 1
        data.write_bytes(content)
    dist.barrier()
    run_of(path, 1, save=None).load()


def local_run(folder, step, **section):
    """Return a run with non-persistent checkpoints in a folder of this rank, as if each rank were a node."""
    import torch.distributed as dist

    place = str(folder / f"node{dist.get_rank()}")
    return run_of(
        folder / "shared",
        step,
        non_persistent_ckpt_type="local",
        non_persistent_local_ckpt_dir=place,
        **section,
    )


def save_local(folder, step):
    """Save one local checkpoint; return its step."""
    return local_run(folder, step).save(non_persistent_ckpt=True).step


def save_local_without_nvrx(folder, step):
    """Save one local checkpoint as if nvidia-resiliency-ext were not installed."""
    import sys
    from unittest.mock import patch

    sys.modules.pop("mb_checkpoint.local.nvrx", None)
    with patch.dict(sys.modules):
        for name in [name for name in sys.modules if name.startswith("nvidia_resiliency_ext.")]:
            del sys.modules[name]
        sys.modules["nvidia_resiliency_ext"] = None
        return save_local(folder, step)


def message_of_local_save(folder):
    """Save in memory; return the line about it."""
    from tiny_state import MemoryLocalStore

    from mb_checkpoint import CheckpointConfig
    from mb_checkpoint.local.checkpoints import save_local

    config = CheckpointConfig(save_rng=False, non_persistent_local_ckpt_dir=str(folder / "on each node"))
    return save_local(run_of(folder, 12).to_save(), config, MemoryLocalStore()).message


def lose_a_node(folder, section, lost):
    """Save a shared and two local checkpoints, delete a node's folder, load; return the selection."""
    import shutil

    import torch.distributed as dist

    local_run(folder, 10, **section).save()
    for step in (12, 14):
        local_run(folder, step, **section).save(non_persistent_ckpt=True)
    if dist.get_rank() == lost:
        shutil.rmtree(folder / f"node{lost}")
    dist.barrier()
    run = local_run(folder, 1, **section)
    loaded = run.load()
    passed = [each.path.name for each in loaded.skipped]
    return loaded.source, loaded.step, sorted(run.model.values()), passed


def load_local_code(folder):
    """Save a local checkpoint, replace it by a file with code on rank 1, and load."""
    import os

    import torch
    import torch.distributed as dist

    class Payload:
        def __reduce__(self):
            return os.mkdir, (str(folder / "executed"),)

    local_run(folder, 10).save()
    local_run(folder, 12).save(non_persistent_ckpt=True)
    if dist.get_rank() == 1:
        (file,) = (folder / "node1").rglob("*_local.pt")
        torch.save(Payload(), file)
    dist.barrier()
    local_run(folder, 1).load()


def load_with_local_store(folder, shared, local, section, options):
    """Save shared checkpoints and local ones in memory, and load; return the selected and skipped checkpoints."""
    from tiny_state import MemoryLocalStore

    from mb_checkpoint import CheckpointConfig, load_checkpoint
    from mb_checkpoint.local.checkpoints import save_local

    store = MemoryLocalStore()
    for step in shared:
        run_of(folder, step).save()
    for step in local:
        run = run_of(folder, step)
        save_local(run.to_save(), CheckpointConfig(save_rng=False), store)
    run = run_of(folder, 1)
    section = CheckpointConfig(load=str(folder), **section)
    loaded = load_checkpoint(run.to_load(**options), section, local=store)
    passed = [each.path.name for each in loaded.skipped]
    return loaded.source, run.state.train_state.step, sorted(run.model.values()), passed


def local_stream_positions(folder, with_loaders, options):
    """Save in memory with data loaders on some ranks, load with one on each; return the restored state."""
    import torch.distributed as dist
    from tiny_state import MemoryLocalStore

    from mb_checkpoint import CheckpointConfig, load_checkpoint
    from mb_checkpoint.local.checkpoints import save_local

    store, rank = MemoryLocalStore(), dist.get_rank()
    run = run_of(folder, 12)
    stored = Loader(100 + rank) if rank in with_loaders else None
    save_local(run.to_save(train_data_iterator=stored), CheckpointConfig(save_rng=False), store)
    run, loader = run_of(folder, 1), Loader()
    context = run.to_load(train_data_iterator=loader, **options)
    loaded = load_checkpoint(context, CheckpointConfig(load=str(folder), load_rng=False), local=store)
    return loader.position, loaded.notes[1:], loaded.step, sorted(run.model.values())


def resume_from_each_node(folder, steps):
    """Save local checkpoints with data loaders, load into a run with another one; return the restored state."""
    import torch.distributed as dist

    for step in steps:
        loader = Loader(step + dist.get_rank())
        local_run(folder, step).save(non_persistent_ckpt=True, train_data_iterator=loader)
    run, loader = local_run(folder, 1), Loader()
    loaded = run.load(train_data_iterator=loader)
    return loaded.step, sorted(run.model.values()), loader.position, loaded.notes


def fill_disk_of_one_node(folder):
    """Save two local checkpoints, the second with a full disk on the second rank.

    Returns the outcome, the step that is loaded afterwards, and the step of a save after that.
    """
    import resource

    import torch.distributed as dist

    local_run(folder, 12).save(non_persistent_ckpt=True)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if dist.get_rank() == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))
    failed = local_run(folder, 14).save(non_persistent_ckpt=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    taken = local_run(folder, 1).load().step
    return type(failed).__name__, failed.message, taken, save_local(folder, 16)


def load_only_local(folder):
    """Save only in memory, and load with a manager; return `has_checkpoint` before, and the loaded state."""
    from tiny_state import MemoryLocalStore

    import mb_checkpoint.manager

    store = MemoryLocalStore()
    mb_checkpoint.manager.open_local_store = lambda config, group: store  # this process ends with this run
    section = {
        "non_persistent_ckpt_type": "local",
        "non_persistent_local_ckpt_dir": str(folder),
        "save_rng": False,
    }
    run_of(folder, 12, **section).save(non_persistent_ckpt=True)
    run = run_of(folder, 1, **section)
    shared = run.manager.has_checkpoint()
    loaded = run.load()
    return shared, loaded.source, loaded.step, sorted(run.model.values())


def save_to_full_local_store(folder, options):
    """Save a local checkpoint while the disk of the last rank is full."""
    import torch.distributed as dist
    from tiny_state import MemoryLocalStore

    from mb_checkpoint import CheckpointConfig
    from mb_checkpoint.local.checkpoints import save_local

    section = CheckpointConfig(non_persistent_local_ckpt_dir=str(folder))
    full = dist.get_rank() == dist.get_world_size() - 1
    save_local(run_of(folder, 12).to_save(**options), section, MemoryLocalStore(full=full))


def load_from_another_trainer(folder):
    """Load a checkpoint that Megatron itself wrote; return the restored state and the notes."""
    from tiny_state import Schedule, written_by_another_trainer

    written_by_another_trainer(folder, 30)
    run = run_of(folder, 1)
    run.scheduler = Schedule()
    loaded = run.load()
    return loaded.source, loaded.step, sorted(run.model.values()), run.scheduler.steps, loaded.notes


def load_with_a_scheduler(folder):
    """Save without a scheduler, load with one; return its steps and the notes."""
    from tiny_state import Schedule

    run_of(folder, 20).save()
    run = run_of(folder, 1)
    run.scheduler = Schedule()
    return run.scheduler.steps, run.load().notes


def load_with_and_without_hashes(folder):
    """Flip a bit in a file that a load does not need; return the step that is selected without and with the hashes."""
    for step in (10, 20):
        run_of(folder, step).save()
    changed = folder / "iter_0000020" / "run_config.yaml"
    changed.write_bytes(bytes([changed.read_bytes()[0] ^ 1]) + changed.read_bytes()[1:])
    return [load(folder, {"verify_integrity": value})[1] for value in (False, True)]


def load_partial(folder, options):
    """Save one of two tensors, and load it as the complete model; return the values of both."""
    run_of(folder, 20).save(adapter_key_filter=is_adapter)
    run = run_of(folder, 1)
    notes = run.load(**options).notes
    return run.model.own[0, 0].item(), run.model.shared[0].item(), notes


def load_damaged(folder, options, *, older_has_all):
    """Save both tensors twice, or one first, damage the newest checkpoint, and load; return step and values of both.

    The byte that differs is one of a tensor, so that only the hash of the file shows it.
    """
    run_of(folder, 10).save(adapter_key_filter=None if older_has_all else is_adapter)
    path = run_of(folder, 20).save().path
    value = struct.pack("<fff", 20, 20, 20)
    (data,) = (each for each in path.glob("*.distcp") if value in each.read_bytes())
    content = data.read_bytes()
    at = content.index(value)
    data.write_bytes(content[:at] + b"\1" + content[at + 1 :])
    run = run_of(folder, 1)
    record = run.load(**options)
    return record.step, run.model.own[0, 0].item(), run.model.shared[0].item()


def weights_of_a_part(folder):
    """Save one of two tensors, and load weights alone; return the values of both."""
    from mb_checkpoint import load_model_weights

    run_of(folder, 20).save(adapter_key_filter=is_adapter)
    run = run_of(folder, 1)
    load_model_weights(folder, run.model, strict=False, pg_collection=run.groups)
    return run.model.own[0, 0].item(), run.model.shared[0].item()


def weights_saved_alone(folder):
    """Save weights alone, load them into another model, and then one tensor of each of two checkpoints.

    Return the values of the first load, the values of both tensors of the second, and the files of the checkpoint.
    """
    from mb_checkpoint import load_model_weights, save_model_weights

    for name, value in (("adapters", 20), ("base", 8)):
        run = run_of(folder, value)
        save_model_weights(
            folder / name,
            [run.model],
            state=run.state,
            pg_collection=run.groups,
            write_assets=lambda target: (target / "tokenizer.json").write_text("{}"),
        )
    run = run_of(folder, 1)
    load_model_weights(folder / "base", run.model, pg_collection=run.groups)
    first = sorted(run.model.values())
    chosen = load_model_weights(
        folder / "adapters", run.model, pg_collection=run.groups, key_filter=is_adapter, base=folder / "base"
    )
    files = [each.name for each in chosen.path.iterdir()]
    other = run_of(folder, 1)
    load_model_weights(
        folder / "adapters",
        other.model,
        pg_collection=other.groups,
        key_filter=is_adapter,
        base=folder / "base",
        base_filter=lambda _name: True,
    )
    assert sorted(other.model.values()) == sorted(run.model.values())
    return first, run.model.own[0, 0].item(), run.model.shared[0].item(), files


def fails_to_save(folder, section, options):
    """Save where the configuration cannot be written; return the root that the failure names, and the events."""
    events = []

    class Events:
        def fire(self, event, context):
            events.append((event, context.step))

    def refuse(path):
        raise OSError(28, "No space left on device", path)

    run = run_of(folder, 20, **section)
    run.state.cfg.to_yaml = refuse
    failed = run.manager.save(run.to_save(**options), Events())
    return str(failed.root), "No space left on device" in failed.message, events


def two_jobs_at_once(folder):
    """Give a writer a second job while the first is in progress."""
    import torch

    from mb_checkpoint.save.background_writer import BackgroundWriter
    from mb_checkpoint.save.writing import DataFile, Piece

    writer = BackgroundWriter(start_method="fork")
    files = (DataFile(name="x", pieces=(Piece(index=None, data=torch.ones(3)),)),)
    try:
        writer.write(folder, 0, files)
        writer.write(folder, 0, files)
    finally:
        writer.close()


def order_of_a_local_save():
    """Return what the manager of local checkpoints does when it is to write a state."""
    from unittest import mock

    from mb_checkpoint.local import nvrx

    order, manager = [], nvrx._Manager.__new__(nvrx._Manager)
    manager.synchronize = lambda: order.append("wait for the device")
    with mock.patch.object(nvrx.LocalCheckpointManager, "_save") as write:
        write.side_effect = lambda *_: order.append("write")
        manager._save({}, None)
    return order


def torch_optimizer_entries_with_a_frozen_parameter():
    """Return the entries that a save stores and that a load requests, of an optimizer that also has a frozen one."""
    import torch
    from megatron.core.dist_checkpointing import ShardedTensor

    from mb_checkpoint.megatron.torch_optimizer import TorchOptimizerState

    weights = {name: torch.nn.Parameter(torch.ones(2)) for name in ("trained", "frozen")}
    weights["frozen"].requires_grad_(False)

    def entries(optimizer, *, is_loading):
        sharded = {name: ShardedTensor.from_rank_offsets(name, weight) for name, weight in weights.items()}
        state = TorchOptimizerState(optimizer).sharded_state_dict(sharded, is_loading=is_loading)["state"]
        return sorted(
            entry.key for values in state.values() if isinstance(values, dict) for entry in values.values()
        )

    optimizer = torch.optim.AdamW(weights.values())
    weights["trained"].sum().backward()
    optimizer.step()
    return entries(optimizer, is_loading=False), entries(torch.optim.AdamW(weights.values()), is_loading=True)


def unsupported_torch_optimizers():
    """Return the messages for a state of other shapes, and for different numbers of steps."""
    import torch

    from mb_checkpoint.errors import CheckpointLayoutError
    from mb_checkpoint.megatron.torch_optimizer import TorchOptimizerState

    def message(optimizer, *updated):
        for parameter in updated:
            parameter.grad = torch.ones_like(parameter)
            optimizer.step()
        try:
            TorchOptimizerState(optimizer).sharded_state_dict({})
        except CheckpointLayoutError as error:
            return str(error)
        return ""

    one, other = torch.nn.Parameter(torch.ones(4, 4)), torch.nn.Parameter(torch.ones(4, 4))
    return message(torch.optim.Adafactor([one]), one), message(torch.optim.AdamW([one, other]), one, other)


def arguments_of_a_resumed_run(folder):
    """Save the arguments of Megatron-LM, and resume; return those that the checkpoint holds, without the counters."""
    given = {"num_layers": 2, "betas": (0.9, 0.95), "kind": object(), "consumed_train_samples": -1}
    run_of(folder, 20).save(megatron_arguments=given)
    loaded = run_of(folder, 1).load()
    return {name: value for name, value in loaded.megatron_arguments.items() if "samples" not in name}
