"""Work of the ranks of a pool in tests of background saves; fast to import, like `rank_work`."""

import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from rank_work import new_run

BACKGROUND = {"async_save": True, "async_write_results_mp_mode": "fork"}
"""A fork is there at once; a fresh interpreter imports torch for seconds."""


def first_part_in_background(shape, section, steps):
    """Train, begin to save, spoil the weights at once, and wait; return losses and the record."""
    import torch

    run = new_run(shape, **{**BACKGROUND, **section})
    losses = run.train(steps)
    scheduled = run.save()
    with torch.no_grad():
        for chunk in run.model:
            for parameter in chunk.parameters():
                parameter.fill_(7.0)
        for state in run.optimizer_tensors().values():
            state.fill_(7.0)
    saved = run.manager.finalize_async_saves(blocking=True, terminate=True)
    run.manager.close()
    return losses, scheduled.message, saved


def train_during_save(section):
    """Start a save, train and poll after each step; return the polls with an outcome, and the seconds."""
    run = new_run({}, **{**BACKGROUND, **section})
    run.train(1)
    began = time.perf_counter()
    run.save()
    first = time.perf_counter() - began
    tracker = Path(section["save"]) / "latest_checkpointed_iteration.txt"
    outcomes = []
    for _ in range(200):
        run.train(1)
        there = tracker.exists()
        outcome = run.manager.finalize_async_saves()
        if outcome is not None:
            outcomes.append((type(outcome).__name__, outcome.step, there))
            break
    again = run.manager.finalize_async_saves()
    run.save()
    run.manager.finalize_async_saves(blocking=True)
    kept = run.manager._saver.writer.staged_bytes
    run.train(1)
    run.save()
    same = run.manager._saver.writer.staged_bytes == kept
    run.manager.finalize_async_saves(blocking=True, terminate=True)
    run.manager.close()
    return first, outcomes, again, same


def save_with_writer_failure(section, trouble, where):
    """Start a save with a failure in the writer of rank `where`; return the outcome, and that of the next save."""
    import torch

    run = new_run({}, **{**BACKGROUND, **section})
    run.train(1)
    run.save()
    assert run.manager.finalize_async_saves(blocking=True).step == 1
    run.train(1)
    own = torch.distributed.get_rank() == where
    pid = run.manager._saver.writer.pid
    if own and trouble in ("stopped", "killed"):
        os.kill(pid, signal.SIGSTOP)
    run.save()
    if own and trouble == "killed":
        os.kill(pid, signal.SIGKILL)
    polls = 0
    outcome = None
    while outcome is None:
        outcome = run.manager.finalize_async_saves()
        polls += 1
        time.sleep(0.02)
    run.train(1)
    run.save()
    after = run.manager.finalize_async_saves(blocking=True, terminate=True)
    run.manager.close()
    return (
        type(outcome).__name__,
        getattr(outcome, "message", ""),
        polls,
        type(after).__name__,
        after.step,
        after.total_bytes,
    )


def lose_staging_folder(section):
    """Start a save, and replace the staging folder by a file; return the outcome."""
    import shutil

    run = new_run({}, **{**BACKGROUND, **section})
    run.train(1)
    os.kill(run.manager._saver.writer.pid, signal.SIGSTOP)
    run.save()
    for staging in Path(section["save"]).glob(".saving_*"):
        shutil.rmtree(staging)
    os.kill(run.manager._saver.writer.pid, signal.SIGCONT)
    try:
        return run.manager.finalize_async_saves(blocking=True).message
    finally:
        run.manager.close()


def describe_writer(section):
    """Save once; return the class of the writer."""
    run = new_run({}, **{**BACKGROUND, **section})
    run.train(1)
    run.save()
    run.manager.finalize_async_saves(blocking=True)
    name = type(run.manager._saver.writer).__name__
    run.manager.close()
    return name


def reserve_and_save(shape, section):
    """Reserve the memory of a save after one step, and save; return the reserved and the used bytes of this rank."""
    run = new_run(shape, **{**BACKGROUND, **section})
    run.train(1)
    run.manager.reserve_memory(run.model, run.optimizer)
    run.manager._saver.writer._buffer.wait_until_reserved()
    reserved = run.manager._saver.writer.staged_bytes
    run.save()
    used = run.manager._saver.writer._buffer._end
    run.manager.finalize_async_saves(blocking=True, terminate=True)
    run.manager.close()
    return reserved, used


def caches_of_a_library():
    """Plan twice with equal tensors and once with one more; return which plans had the caches of the one before."""
    from unittest.mock import patch

    import torch
    from megatron.core.dist_checkpointing import ShardedTensor

    from mb_checkpoint import CheckpointConfig
    from mb_checkpoint.save import nvrx_async

    writer = nvrx_async.NvrxWriter.__new__(nvrx_async.NvrxWriter)  # without the library
    writer._config, writer._dp_cp = CheckpointConfig(ckpt_assume_constant_structure=True), None
    writer._strategy = writer._structure = None
    used = []
    with patch.object(
        nvrx_async.dist_checkpointing, "save", lambda state, to, strategy, **_: used.append(strategy)
    ):
        for names in ("a", "a", "ab"):
            state = {name: ShardedTensor.from_rank_offsets(name, torch.ones(2)) for name in names}
            state["args"] = len(used)  # values of no piece are of no plan
            writer.plan(state, "folder", metadata={}, validate=True)
    return [used[1] is used[0], used[2] is used[1]]


def phases_with_a_library(folder):
    """Let a library without a device write a file of this rank; return the results in turn, and the files recorded."""
    import time
    from pathlib import Path

    from mb_checkpoint.save.background_writer import BackgroundWriter
    from mb_checkpoint.save.nvrx_async import NvrxWriter
    from mb_checkpoint.save.writing import DataFile, Piece, collect_results

    class Queue:
        def schedule_async_request(self, request):
            Path(folder, "__0_0.distcp").write_bytes(b"weights")

        def maybe_finalize_async_calls(self, blocking):
            return [1]

        def close(self, abort):
            pass

    writer = NvrxWriter.__new__(NvrxWriter)  # without the library
    writer._queue, writer._finisher = Queue(), BackgroundWriter(start_method="fork")
    writer._request, writer._writing, writer._checksum = None, None, "sha256"
    position = DataFile(name="position.bin", pieces=(Piece(index=None, data=b"position"),), checksum="sha256")
    writer.write(Path(folder), 0, [position])
    results = [writer.result()]
    while results[-1] is None:
        time.sleep(0.01)
        results.append(writer.result())
    writer.close()
    files = collect_results(Path(folder), 1)[0].files
    return results[0] is None, results[-1].failure, [(file.name, file.checksum) for file in files]
