"""What the ranks of a pool do with the tiny state; light to import, as `rank_work`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))


def run_of(folder, step, **section):
    from tiny_state import Run

    return Run(folder, step, **section)


def save_steps(folder, steps, section, wishes):
    """Save some steps; return their folders and what is left below the root."""
    paths = []
    for step in steps:
        saved = run_of(folder, step, **section).save(**wishes)
        paths.append(str(saved.path.relative_to(folder)))
    return paths


def load(folder, section, wishes=None):
    """Load; return source, step, the values of the weights, and the folders passed over with reasons."""
    run = run_of(folder, 1, **section)
    loaded = run.load(**(wishes or {}))
    passed = [(each.path.name, each.reason) for each in loaded.passed_over]
    return loaded.source, loaded.step, sorted(run.model.values()), passed


def save_adapters(folder, step):
    """Save what a filter accepts; return the names of the stored weights."""
    from mb_checkpoint.mcore import contents_of

    saved = run_of(folder, step).save(adapter_key_filter=is_adapter)
    return sorted(contents_of(saved.path).model_shapes)


def load_adapters(folder, base):
    """Load the base from one run and adapters from another; return source and both tensors' values."""
    run = run_of(folder, 1, pretrained_checkpoint=str(base))
    loaded = run.load(adapter_key_filter=is_adapter)
    return loaded.source, loaded.step, run.model.own[0, 0].item(), run.model.shared[0].item()


def is_adapter(name):
    return name == "shared"


class Loader:
    """An iterator whose iterable keeps its position."""

    def __init__(self, position=0):
        self.iterable = self
        self.position = position

    def save_state(self):
        return {"position": self.position}

    def restore_state(self, state):
        self.position = state["position"]


def stream_positions(folder, missing):
    """Save with a data loader, load into another; return what the second one continues with."""
    import torch.distributed as dist

    rank = dist.get_rank()
    saved = run_of(folder, 10).save(train_data_iterator=Loader(100 + rank))
    files = sorted(path.name for path in saved.path.glob("train_dataloader*"))
    dist.barrier()
    if missing and rank == 0:
        (saved.path / "train_dataloader_dprank001.pt").unlink()
        (saved.path / "manifest.json").unlink()
    dist.barrier()
    loader = Loader()
    run_of(folder, 1).load(train_data_iterator=loader)
    return files, loader.position


def flipped_bits(folder):
    """Flip a bit in each file of the newest of two checkpoints; return which load found it, and the step taken."""
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


def flipped_bit_in_a_named_one(folder):
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
    """Return a run whose temporary checkpoints lie in a folder of this rank, as if each rank were a node."""
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


def lose_a_node(folder, section, lost):
    """Save a shared and two local checkpoints, lose a node's folder, load; return what was taken."""
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
    passed = [each.path.name for each in loaded.passed_over]
    return loaded.source, loaded.step, sorted(run.model.values()), passed
