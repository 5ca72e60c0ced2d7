"""Injection of a fault at each file operation of a save or a load, and check of the remaining checkpoints.

Imports torch and Megatron once and forks the ranks of every run. As a program it prints a JSON summary.
Usage: fault_driver.py FOLDER RANKS:[fsdp-|torch-]sync|async|load[-prune]:STRIDE ... (stride 1: every operation; prune:
only those after the commit, which delete the checkpoint before the previous one)
"""

import contextlib
import json
import os
import select
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import mb_guard
import mb_host

mb_host.install()
mb_guard.install(quiet=True)

import fault_points  # noqa: E402
import torch.distributed as dist  # noqa: E402
from fsdp_state import FsdpRun  # noqa: E402
from tiny_state import TinyStateRun  # noqa: E402
from torch_run import TorchRun  # noqa: E402

from mb_checkpoint import select_checkpoint  # noqa: E402
from mb_checkpoint.formats.manifest import find_hash_mismatches, read_manifest  # noqa: E402


def fork_ranks(world, folder, work, *, grace=0.2, limit=90.0):
    """Run `work(rank)` on forked ranks; return per rank what it returned, or how it ended.

    A pipe that all processes of the run inherit is closed once the last one is dead: a writer that is killed after its
    rank holds locks for a moment longer.
    """
    folder.mkdir(exist_ok=True)
    (folder / "store").unlink(missing_ok=True)
    children = {}
    all_dead, inherited = os.pipe()
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            _be_rank(rank, world, folder, work)
        children[pid] = rank
    os.close(inherited)
    ended, deadline = {}, time.monotonic() + limit
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid in children:
            rank = children.pop(pid)
            report = folder / f"report_{rank}"
            code = os.waitstatus_to_exitcode(status)
            ended[rank] = json.loads(report.read_text()) if code == 0 else f"exit {code}"
            report.unlink(missing_ok=True)
            if code != 0:
                deadline = min(deadline, time.monotonic() + grace)
        elif time.monotonic() > deadline:
            for each in children:
                os.kill(each, signal.SIGKILL)
        else:
            time.sleep(0.002)
    assert select.select([all_dead], [], [], limit)[0], "a process outlives its rank"
    os.close(all_dead)
    return [ended[rank] for rank in range(world)]


def _be_rank(rank, world, folder, work):
    code = 1
    try:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
        (folder / f"report_{rank}").write_text(json.dumps(work(rank)))
        code = 0
    except BaseException:  # noqa: BLE001  # a child must not continue as its parent
        if os.environ.get("FAULTS_LOUD"):
            traceback.print_exc()
    os._exit(code)


def saved(outcome):
    """Return the outcome of a save in one word."""
    return type(outcome).__name__


HANG_SECONDS = 2.0
"""Time after which a stopped writer is killed; on a busy machine this may hit one that works, and the save fails."""
SLOW = 5
"""Fraction of the points at which a writer is stopped, as each takes that time."""


FILES = {"latest_checkpointed_iteration.txt", "latest_train_state.pt"}
"""Files next to the checkpoints; none else may remain."""


class Matrix:
    """All points of one kind of run."""

    def __init__(self, world, mode, stride, folder):
        self.world, self.stride, self.folder = world, stride, folder
        self.prune = mode.endswith("-prune")
        layout, _, self.mode = mode.removesuffix("-prune").rpartition("-")
        self.make = {"": TinyStateRun, "fsdp": FsdpRun, "torch": TorchRun}[layout]
        self.template, self.root = folder / "template", folder / "root"
        self.section = (
            {"async_save": True, "async_write_results_mp_mode": "fork"} if self.mode == "async" else {}
        )
        self.points, self.problems, self.by = 0, [], {}

    def run(self):
        for step in (5, 10):
            work = self.saving(self.template, step)
            assert fork_ranks(self.world, self.folder, work) == ["SavedCheckpoint"] * self.world
        logs = self.record()
        for (rank, process), names in logs.items():
            first = committed_at(names) if self.prune else 0
            for kind, applies in fault_points.APPLIES.items():
                if kind in fault_points.WRITER_ALONE and process == "main":
                    continue  # a crash is a kill
                numbers = [number for number, (name, _) in enumerate(names) if name in applies]
                numbers = [number for number in numbers if number >= first]
                stride = self.stride * (SLOW if kind == "stop" else 1)
                for number in numbers[stride // 2 :: stride] or numbers[-1:]:
                    self.look_at(rank, process, number, kind, " ".join(names[number]))
        return {"points": self.points, "by": self.by, "problems": self.problems}

    def record(self):
        ended = self.attempt(None, None, None, "kill")
        assert set(ended) <= {"SavedCheckpoint", "resumed"}, ended
        return {
            (rank, process): [
                tuple(line.split(" ", 1))
                for line in (self.folder / f"log_{rank}.{process}").read_text().splitlines()
            ]
            for rank in range(self.world)
            for process in ("main", "worker")
            if (self.folder / f"log_{rank}.{process}").exists()
        }

    def saving(self, root, step, **section):
        return lambda _: saved(self.make(root, step, **{"most_recent_k": 2, **section}).save())

    def attempt(self, rank, process, number, kind):
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.copytree(self.template, self.root)
        for log in self.folder.glob("log_*"):
            log.unlink()

        def work(own):
            plan = fault_points.Plan(root=str(self.root), log=str(self.folder / f"log_{own}"), kind=kind)
            if own == rank:
                plan.process, plan.number = process, number
            fault_points.install(plan)
            if self.mode == "load":
                return self.make(self.root, 1).load().source
            limit = {"async_hang_seconds": HANG_SECONDS} if kind == "stop" else {}
            return self.saving(self.root, 20, **self.section, **limit)(own)

        return fork_ranks(self.world, self.folder, work)

    def look_at(self, rank, process, number, kind, name):
        ended = self.attempt(rank, process, number, kind)
        self.points += 1
        self.by[kind] = self.by.get(kind, 0) + 1
        where = f"{self.mode} rank {rank} {process} {number} {name} {kind}: {ended}"
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.folder / "before")
        shutil.copytree(self.root, self.folder / "before")
        try:
            self.check(ended, kind)
        except Exception as error:  # noqa: BLE001  # whatever it is, the summary names the point
            self.problems.append(f"{where}: {type(error).__name__}: {error}")

    def check(self, ended, kind):
        alive = [each for each in ended if not each.startswith("exit")]
        if kind not in fault_points.KILLS and self.mode != "load":
            assert len(set(ended)) == 1, "the ranks disagree"
            assert len(alive) == len(ended), "an error ended the run"
        if self.prune and kind not in fault_points.KILLS:
            assert set(ended) == {"SavedCheckpoint"}, "a failed deletion became a failed save"
        newest = select_checkpoint(self.root)
        assert newest is not None, "nothing to resume from"
        assert newest.step in ((20,) if self.prune else (10, 20)), newest
        if "SavedCheckpoint" in ended:
            assert newest.step == 20, "a save that was reported is lost"
        for step in {10, newest.step}:
            path = self.root / f"iter_{step:07d}"
            assert not find_hash_mismatches(path, read_manifest(path).files), f"step {step} was changed"
        resumed = fork_ranks(self.world, self.folder, lambda _: self.resume())
        assert resumed == [[newest.step, [float(newest.step)], "SavedCheckpoint", 30]] * self.world, resumed
        # A folder that no tracker named does not count, and is deleted once two newer ones do.
        found = {path.name for path in self.root.iterdir()} - {"iter_0000020"}
        assert found == {f"iter_{step:07d}" for step in {newest.step, 30} - {20}} | FILES, found

    def resume(self):
        run = self.make(self.root, 1, most_recent_k=2)
        step = run.load().step
        values = sorted(run.model.values())
        run.state.train_state.step = 30
        done = saved(run.save())
        return [step, values, done, select_checkpoint(self.root).step]


def committed_at(names):
    """Return the number of the first operation after the commit; that of none if another process commits."""
    synced = [number for number, name in enumerate(names) if name == ("fsync", "")]
    return synced[-1] + 1 if synced else len(names)


def summary(folder, wanted):
    """Go through some matrices; return points and problems of each."""
    found = {}
    for each in wanted:
        world, mode, stride = each.split(":")
        place = Path(folder) / f"{world}_{mode}"
        place.mkdir(parents=True)
        found[each] = Matrix(int(world), mode, int(stride), place).run()
    return found


if __name__ == "__main__":
    print(json.dumps(summary(sys.argv[1], sys.argv[2:])))
