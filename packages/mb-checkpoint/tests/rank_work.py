"""Work of the ranks of a pool; fast to import, so that a test can name these functions without Megatron.

A shape is a dict of the fields of `tiny_run.Shape`, a section one of those of `CheckpointConfig`.
"""

import random
import resource
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))


def train_uninterrupted(shape, steps):
    """Train without an interruption; return losses and fingerprint."""
    run = new_run(shape)
    return run.train(steps), run.fingerprint()


def first_part(shape, section, steps):
    """Train and save; return losses and the result of the save."""
    run = new_run(shape, **section)
    return run.train(steps), run.save()


def second_part(shape, section, steps):
    """Load into a run with other weights and generators, and train; return losses, fingerprint, record."""
    run = new_run({"seed": 99, **shape}, **section)
    loaded = run.load()
    return run.train(steps), run.fingerprint(), loaded


def new_run(shape, **section):
    """Return a fresh run."""
    from tiny_run import Shape, TinyRun

    return TinyRun(Shape(**shape), **section)


def resume_from_local_disk(folder, shape, *steps, changed=()):
    """Train, save on this node's disk, repeatedly, and resume; return whether the library was there when the model was
    built, and whether weights and optimizer are as they were."""
    import sys

    from mb_checkpoint import CheckpointSaveContext

    section = {"load": folder, "non_persistent_ckpt_type": "local", "non_persistent_local_ckpt_dir": folder}
    run = new_run(shape, **section)
    before = "mb_checkpoint.local.nvrx" in sys.modules
    context = CheckpointSaveContext(
        state=run.state,
        model=run.model,
        optimizer=run.optimizer,
        opt_param_scheduler=run.scheduler,
        num_floating_point_operations_so_far=0,
        non_persistent_ckpt=True,
    )
    for number in steps:
        run.train(number)
        run.manager.save(context)
    again = new_run({**shape, **dict(changed), "seed": 99}, **section)
    again.load()
    there, here = run.fingerprint(), again.fingerprint()
    return before, [
        there[name] == here[name] for name in ("weights", "optimizer", "rates", "torch", "trackers")
    ]


def outcome_of_load(shape, section, options):
    """Load; return the changed parts (weights, optimizer and so on), the step of the counters, and the record."""
    run = new_run({"seed": 99, **shape}, **section)
    before = run.fingerprint()
    record = run.load(**options)
    after = run.fingerprint()
    changed = [name for name in ("weights", "optimizer", "torch", "trackers") if before[name] != after[name]]
    return changed, run.state.train_state.step, record


def outcome_of_weights(shape, folder, seed):
    """Load weights into a model; return a digest of them and the step."""
    from tiny_run import digest

    from mb_checkpoint import load_model_weights

    run = new_run({"seed": seed, **shape})
    chosen = load_model_weights(folder, run.model)
    return digest(dict(run.model[0].named_parameters())), chosen.step


def weights(shape, steps):
    """Return a digest of the weights after some steps."""
    run = new_run(shape)
    run.train(steps)
    return run.fingerprint()["weights"]


def error_of(work, *args):
    """Call a function and return type, message and family of its exception."""
    try:
        work(*args)
    except Exception as error:  # noqa: BLE001  # whatever it is, the test compares it
        return type(error).__name__, str(error), isinstance(error, OSError)
    return "no error", "", False


def save_with_failing_config(shape, section):
    """Save twice; the second time the configuration cannot be written."""
    run = new_run(shape, **section)
    run.train(1)
    run.save()
    run.train(1)
    run.state.cfg.fails = True
    run.save()


def save_with_empty_buffer(section):
    """Save a model with a buffer without elements."""
    import torch

    run = new_run({}, **section)
    for layer in run.model[0].module.decoder.layers:
        layer.mlp.linear_fc1.register_buffer("cache", torch.empty(0, 4))
    run.save()


def full_disk(shape, section):
    """Save twice; the second time every file ends after 4 KiB, as on a full disk."""
    run = new_run(shape, **section)
    run.train(1)
    run.save()
    run.train(1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        run.save()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def load_only(shape, section, options):
    """Load and return the record."""
    return new_run(shape, **section).load(**options)


def replicas_that_drew_differently(section):
    """Draw a different number of times on each rank, save, draw, load, draw: equal if each got its own state."""
    import torch

    run = new_run({}, **section)
    for _ in range(torch.distributed.get_rank() + 1):
        random.random()
    run.save()
    drawn = random.random()
    run.load()
    return drawn, random.random()


def rank_zero_fails():
    """Raise on rank 0, and return the error of each rank."""
    from mb_checkpoint.collectives import on_rank_zero

    def work():
        raise FileNotFoundError(2, "No such file", "x")

    return error_of(on_rank_zero, work)


def rank_zero_fails_unpicklable(reason):
    """Raise on rank 0 an exception that no other process can rebuild, or that cannot be pickled."""
    from mb_checkpoint.collectives import on_rank_zero

    class LocalError(Exception):
        def __reduce__(self):
            if reason == "refuses":
                raise ValueError("not for pickles")
            return super().__reduce__()

    def work():
        raise LocalError("only here")

    return error_of(on_rank_zero, work)


def save_with(section, options):
    """Save with options in the context."""
    from mb_checkpoint import CheckpointConfig, CheckpointSaveContext, save_checkpoint

    run = new_run({})
    context = CheckpointSaveContext(
        state=run.state,
        model=run.model,
        optimizer=None,
        opt_param_scheduler=None,
        num_floating_point_operations_so_far=0,
        **options,
    )
    return save_checkpoint(context, CheckpointConfig(**section))


def without_process_group(section):
    """Save after the default process group was destroyed."""
    import torch

    run = new_run({}, **section)
    torch.distributed.destroy_process_group()
    run.save()


def events_and_assets(section):
    """Save with a callback manager and a writer of assets; return the events and the files."""
    from mb_checkpoint import CheckpointConfig, CheckpointSaveContext, DefaultCheckpointManager

    seen = []

    class Events:
        def fire(self, event, context):
            seen.append((event, context.step))

    run = new_run({})
    context = CheckpointSaveContext(
        state=run.state,
        model=run.model,
        optimizer=run.optimizer,
        opt_param_scheduler=run.scheduler,
        num_floating_point_operations_so_far=0,
    )
    manager = DefaultCheckpointManager(
        CheckpointConfig(**section), write_assets=lambda folder: (folder / "tokenizer.json").write_text("{}")
    )
    found_before = manager.has_checkpoint()
    saved = manager.save(context, Events())
    manager.finalize_async_saves(run.state, blocking=True, terminate=True)
    files = sorted(path.name for path in saved.path.iterdir())
    return seen, files, saved.message, (found_before, manager.has_checkpoint())


def train_and_save(shape, section, steps, extra=None):
    """Train and save, and save the same state again with another section."""
    run = new_run(shape, **section)
    run.train(steps)
    run.save()
    if extra is not None:
        manager_of(run, extra).save()


def load_and_save(shape, section, target):
    """Load into a run with other weights and save it elsewhere; return the notes of the load."""
    run = new_run({"seed": 99, **shape}, **section)
    loaded = run.load()
    manager_of(run, target).save()
    return loaded.notes


def manager_of(run, section):
    """Replace the manager of a run."""
    from mb_checkpoint import CheckpointConfig, DefaultCheckpointManager

    run.manager = DefaultCheckpointManager(CheckpointConfig(**section))
    return run


def load_weights_and_states(shape, section, report):
    """Load, and write digests of the weights and of the full optimizer state of each parameter on rank 0."""
    import torch
    from tiny_run import digest

    run = new_run({"seed": 99, **shape}, **section)
    run.load()
    lines = [digest(dict(run.model[0].named_parameters()))]
    for part in run.optimizer.chained_optimizers:
        states = part.get_parameter_state_dp_zero(use_gloo_comm=False)
        if torch.distributed.get_rank() == 0:
            for buffers in states.values():
                if not isinstance(buffers, dict):
                    continue
                for tensors in buffers.values():
                    names = ("param", "exp_avg", "exp_avg_sq")
                    size = tensors.get("numel_unpadded")
                    lines += [f"{name} {digest({name: tensors[name][:size]})}" for name in names]
    if torch.distributed.get_rank() == 0:
        from pathlib import Path

        Path(report).write_text("\n".join(lines))


def change_after_save(section):
    """Start a save, then change the configuration and the counters; return the stored ones."""
    from pathlib import Path

    from mb_checkpoint import read_train_state

    run = new_run({}, async_save=True, async_write_results_mp_mode="fork", **section)
    run.state.cfg.text = "as of the save\n"
    run.train(1)
    run.save()
    run.state.cfg.text = "later\n"
    run.state.train_state.consumed_train_samples = 999
    saved = run.manager.finalize_async_saves(blocking=True)
    run.manager.close()
    config = Path(saved.path / "run_config.yaml").read_text()
    return config, read_train_state(saved.path / "train_state.pt")["consumed_train_samples"]


def saved_after_each_step(shape, section, steps, before=False):
    """Train and save after each step, in one run; with `before`, also before the first one."""
    run = new_run(shape, **section)
    if before:
        run.save()
    for _ in range(steps):
        run.train(1)
        run.save()


def master_weights(folder, shape, section):
    """Save a float32 run and load its weights into a bfloat16 one; return whether the master weights are as they were
    stored, and whether they are what bfloat16 keeps of that."""
    import torch

    run = new_run({}, save=folder, save_optim=False)
    run.train(1)
    run.save()
    stored = [value.flatten() for name, value in run.optimizer_tensors().items() if "master" in name]
    again = new_run({"bf16": True, "seed": 99, **shape}, load=folder, load_optim=False, **section)
    again.load()
    found = [value.flatten() for name, value in again.optimizer_tensors().items() if "master" in name]
    wanted = stored, [value.bfloat16().float() for value in stored]
    return [
        sorted(each.tolist() for each in values) == sorted(map(torch.Tensor.tolist, found))
        for values in wanted
    ]


def draw_after_a_plain_load(folder):
    """Return what Megatron's random states give after a save of TorchCheckpointer, and after its load."""
    import torch
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import get_cuda_rng_tracker, model_parallel_cuda_manual_seed

    from mb_checkpoint import TorchCheckpointer

    parallel_state.initialize_model_parallel()
    model_parallel_cuda_manual_seed(1234)
    checkpointer = TorchCheckpointer(folder, {"model": torch.nn.Linear(2, 2)})

    def draw():
        with get_cuda_rng_tracker().fork():
            return torch.rand(3).tolist()

    checkpointer.save(1)
    first = draw()
    assert draw() != first
    checkpointer.load()
    return first, draw()


def selected_weights(folder):
    """Save a trained model, and load one of its layers into another one, in the only process.

    Return the parameters that changed, whether they are those of the checkpoint, and the bytes that were not read, as a
    share of the model.
    """
    from mb_checkpoint import load_model_weights, save_model_weights

    def bytes_read():
        return int(Path("/proc/self/io").read_text().split("rchar: ")[1].split()[0])

    def load(is_selected):
        again, began = new_run({"seed": 99}), bytes_read()
        before = {name: value.clone() for name, value in again.model[0].named_parameters()}
        load_model_weights(folder, again.model, verify_integrity=False, key_filter=is_selected)
        after = dict(again.model[0].named_parameters())
        return {
            name: after[name] for name in after if not after[name].equal(before[name])
        }, bytes_read() - began

    run = new_run({})
    run.train(1)
    save_model_weights(folder, run.model, state=run.state)
    stored = dict(run.model[0].named_parameters())
    _, complete = load(lambda _name: True)
    changed, part = load(lambda name: "layers.1.mlp." in name)
    size = sum(value.numel() * value.element_size() for value in stored.values())
    equal = all(value.equal(stored[name]) for name, value in changed.items())
    return list(changed), equal, (complete - part) / size


PART = """
import pathlib, sys
part, count = map(int, sys.argv[5].split("/"))
assert "RANK" not in __import__("os").environ
if part == FAILS:
    sys.exit("error: the disk is full")
out = pathlib.Path(sys.argv[3])
out.mkdir(exist_ok=True)
(out / f"{part}-of-{count}").write_text(sys.argv[1])
"""


def distributed_copies(folder, every, fails, ends_with):
    """Export two checkpoints from every n-th rank; the program of one part may fail. Return the log of each rank."""
    from types import SimpleNamespace

    import torch.distributed as dist

    from mb_checkpoint.save.exported_weights import hugging_face_copies

    ranks = SimpleNamespace(rank=dist.get_rank(), world_size=dist.get_world_size())
    ranks.is_logging_rank = ranks.rank == ranks.world_size - 1
    section = SimpleNamespace(
        also_save_hf_checkpoint=True,
        hf_source_path=None,
        hf_distributed_save=True,
        hf_save_every_n_ranks=every,
    )
    lines = []
    command = [sys.executable, "-c", PART.replace("FAILS", str(fails))]
    [copies] = hugging_face_copies(section, command=command, ranks=ranks, log=lines.append)
    for step in (1, 2):
        path = folder / f"iter_{step}"
        path.mkdir(exist_ok=True)
        (path / ".hf-writing").mkdir(exist_ok=True)
        save = SimpleNamespace(step=step, non_persistent=False, path=path)
        dist.barrier()
        copies.on_checkpoint_save(SimpleNamespace(save=save))
    copies.on_train_end(SimpleNamespace(outcome=ends_with))
    dist.barrier()
    return lines


def legacy_first_part(shape, folder, steps):
    """Train and save in Megatron-LM's legacy layout, as its `save_checkpoint` does; return the losses."""
    from argparse import Namespace

    import torch
    from megatron.core import parallel_state
    from megatron.core.utils import unwrap_model

    from mb_checkpoint import mcore
    from mb_checkpoint.formats.legacy import rank_folder
    from mb_checkpoint.megatron.groups import CheckpointGroups
    from mb_checkpoint.megatron.model import section_names
    from mb_checkpoint.state.rng import collect_rng_state
    from mb_checkpoint.state.train_state import EXACT_FLOPS

    run = new_run(shape)
    losses = run.train(steps)
    counters, sizes = run.state.train_state, run.shape
    here = Path(folder) / f"iter_{counters.step:07d}" / rank_folder(CheckpointGroups.of(None))
    chunks = zip(section_names(run.model), unwrap_model(run.model), strict=True)
    state = {
        "args": Namespace(
            tensor_model_parallel_size=sizes.tp,
            pipeline_model_parallel_size=sizes.pp,
            expert_model_parallel_size=sizes.ep,
            virtual_pipeline_model_parallel_size=sizes.vpp,
            consumed_train_samples=counters.consumed_train_samples,
        ),
        "checkpoint_version": 3.0,
        "iteration": counters.step,
        **{name: chunk.state_dict_for_save_checkpoint() for name, chunk in chunks},
        "optimizer": run.optimizer.state_dict(),
        "opt_param_scheduler": run.scheduler.state_dict(),
        "rng_state": [collect_rng_state(mcore.MegatronRng())],
        EXACT_FLOPS: counters.floating_point_operations_so_far,
    }
    here.mkdir(parents=True, exist_ok=True)
    if parallel_state.get_expert_data_parallel_rank() == 0:
        torch.save(state, here / "model_optim_rng.pt")
    if sizes.dist_opt:
        run.optimizer.save_parameter_state(str(here / "distrib_optim.pt"))
    Path(folder, "latest_checkpointed_iteration.txt").write_text(str(counters.step))
    torch.distributed.barrier()
    return losses


def legacy_names(stored, own):
    """Return the names under which a model with some weights takes stored ones, and whether the order is equal."""
    import torch

    from mb_checkpoint.formats.legacy import matched

    def weights(names):
        return {name: None if name.endswith("_extra_state") else torch.zeros(2) for name in names}

    values, ordered = matched(weights(stored), weights(own), path=Path("here"), strict=True)
    return list(values), ordered


def legacy_problem(shape, section):
    """Load into a run; return the message of the error."""
    try:
        new_run(shape, **section).load()
    except (OSError, ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def steps_after_load(shape, section):
    """Load into a run; return the numbers of steps that Adam has counted for the parameters of this rank."""
    run = new_run({"seed": 99, **shape}, **section)
    run.load()
    return {int(value) for name, value in run.optimizer_tensors().items() if name.endswith(" step")}


def moved_part(shape, section, steps):
    """Load into a run with other weights and generators, train and save; return losses, fingerprint, record."""
    run = new_run({"seed": 99, **shape}, **section)
    loaded = run.load()
    losses = run.train(steps)
    run.save()
    return losses, run.fingerprint(), loaded


OBJECT_COLLECTIVES = ("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list")


def collectives_of_saves(shape, section, saves):
    """Save repeatedly; return for each save the number of collectives that send objects, by name, and their bytes."""
    import pickle
    from collections import Counter

    import torch.distributed as dist

    run, counted = new_run(shape, **section), Counter()

    def counting(name, function):
        def call(*args, **options):
            sent = args[1] if name == "all_gather_object" else [*args, *options.values()][0]
            counted[name] += 1
            counted["bytes"] += len(pickle.dumps(sent))
            return function(*args, **options)

        return call

    for name in OBJECT_COLLECTIVES:
        setattr(dist, name, counting(name, getattr(dist, name)))
    found = []
    for _ in range(saves):
        run.train(1)
        counted.clear()
        run.save()
        found.append(dict(counted))
    return found


def plans_of_states():
    """Plan twice with equal tensors and once with one more; return the keys of the index, and those of this rank."""
    from pathlib import Path
    from tempfile import mkdtemp

    import torch
    from megatron.core.dist_checkpointing import ShardedTensor

    from mb_checkpoint.megatron.plan import TorchDistSavePlanner

    rank, found = torch.distributed.get_rank(), []
    planner = TorchDistSavePlanner(sharing=torch.distributed.group.WORLD, writers=1)
    for names in (["a", "b"], ["a", "b"], ["a", "b", "c"]):
        state = {
            name: ShardedTensor.from_rank_offsets(name, torch.ones(2), replica_id=rank) for name in names
        }
        plan = planner.plan(state, Path(mkdtemp()), metadata={}, validate=True)
        index = None if plan.index is None else sorted(plan.index.state_dict_metadata)
        written = sorted(piece.index.fqn for file in plan.files for piece in file.pieces)
        found.append((index, written))
    return found


def collector_while_planning():
    """Plan; return whether Python's garbage collector is on in each plan, and afterwards."""
    import gc

    from mb_checkpoint.megatron import plan

    save, is_on = plan.dist_checkpointing.save, []

    def recording(*args, **options):
        is_on.append(gc.isenabled())
        return save(*args, **options)

    plan.dist_checkpointing.save = recording
    try:
        plans_of_states()
    finally:
        plan.dist_checkpointing.save = save
    return [*is_on, gc.isenabled()]


def tensor_that_no_rank_writes():
    """Plan a tensor of which every rank is a replica; return the errors."""
    from pathlib import Path
    from tempfile import mkdtemp

    import torch
    from megatron.core.dist_checkpointing import ShardedTensor

    from mb_checkpoint.megatron.plan import TorchDistSavePlanner

    state = {"a": ShardedTensor.from_rank_offsets("a", torch.ones(2), replica_id=1)}
    TorchDistSavePlanner(sharing=None, writers=1).plan(state, Path(mkdtemp()), metadata={}, validate=True)


def objects_next_to_a_group_of_devices():
    """Return what ranks gather in a group without a backend for the host, and whether its gloo group is opened once."""
    import torch.distributed as dist

    from mb_checkpoint.collectives import gather_in, host_group

    group = dist.new_group(backend="cuda:gloo")
    values = gather_in(dist.get_rank(), group)
    opened = host_group(group)
    return values, opened is not group, host_group(group) is opened, host_group() is dist.group.WORLD


def files_read_by_load(shape, section):
    """Load into a new run; return how often this rank opened each file of a checkpoint, by its name."""
    import sys
    from collections import Counter
    from pathlib import Path

    run, opened = new_run({"seed": 99, **shape}, **section), Counter()

    def count(event, arguments):
        if event == "open" and isinstance(arguments[0], str) and "/iter_" in arguments[0]:
            opened[Path(arguments[0]).name] += 1

    sys.addaudithook(count)
    run.load()
    found = dict(opened)
    return found, run.fingerprint()


def bytes_read_by_load(shape, section):
    """Load twice, the first time with all imports; return the bytes that this rank's second load read from files."""
    from pathlib import Path

    def count():
        return int(Path("/proc/self/io").read_text().split()[1])

    new_run({"seed": 98, **shape}, **section).load()
    run = new_run({"seed": 99, **shape}, **section)
    before = count()
    run.load()
    found = count() - before
    return found, run.fingerprint()


def two_steps(shape, first, second):
    """Save after one step and after two; the sections may differ."""
    from mb_checkpoint import CheckpointConfig, DefaultCheckpointManager

    run = new_run(shape, **first)
    run.train(1)
    run.save()
    run.manager = DefaultCheckpointManager(CheckpointConfig(**second))
    run.train(1)
    return str(run.save().path)


def state_after_load(shape, section):
    """Load into a new run; return the state and the skipped checkpoints, and a further step's losses and weights."""
    run = new_run({"seed": 99, **shape}, **section)
    record = run.load()
    state = run.fingerprint()
    further = run.train(1), run.fingerprint()
    return state, [(each.path.name, each.reason) for each in record.skipped], record.step, further
