"""A signal to one rank at a random moment: all ranks leave after the same step, saved once. A hundred times."""

import os
import random
import signal
import threading
import time
from types import SimpleNamespace

import pytest
from runs import run_ranks

TIMES = 100


class Saves:
    """A checkpointer that all ranks take part in, as in a real save."""

    def __init__(self):
        self.steps = []

    def save(self, step, *, non_persistent):
        from torch import distributed

        from mb_loop import SaveResult

        distributed.barrier()
        self.steps.append(step)
        return [SaveResult(step=step, non_persistent=non_persistent, written=True)]

    may_wait = False

    def poll(self, *, blocking):
        return []

    def wait(self):
        return []

    def retry_due(self, *, blocking):
        return False


def stop_often(times):
    """Train so many times until one rank gets a signal; return what each of this rank's runs came to."""
    from torch import distributed

    drift = random.Random(distributed.get_rank())
    shared = random.Random(distributed.get_world_size())
    answers = []
    for attempt in range(times):
        victim, moment = shared.randrange(distributed.get_world_size()), shared.uniform(0, 0.04)
        answers.append(
            [victim, *stop_once(f"{attempt}", moment if victim == distributed.get_rank() else None, drift)]
        )
        distributed.barrier()  # the store must outlive the last question
    return answers


def stop_once(attempt, moment, drift):
    import torch
    from torch import distributed

    import mb_loop
    from mb_resilience import AgreedStop, SignalWatcher

    model = torch.nn.Linear(1, 1)
    rank, world_size = distributed.get_rank(), distributed.get_world_size()

    def forward_step(iterator, model):
        time.sleep(drift.uniform(0, 0.001))  # ranks drift apart, and the loss brings them together
        return model(torch.ones(1)).sum(), lambda loss: (loss, {"loss": loss.detach()})

    saves, state = Saves(), mb_loop.LoopState.of(train_iters=100_000, data_parallel_size=world_size)
    with SignalWatcher((signal.SIGUSR1,)) as watcher:
        stop = AgreedStop(
            watcher,
            store=distributed.distributed_c10d._get_default_store(),
            rank=rank,
            world_size=world_size,
            attempt=attempt,
        )
        if moment is not None:
            threading.Timer(moment, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        parts = mb_loop.TrainParts(
            forward_step_func=forward_step,
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            pg_collection=SimpleNamespace(dp_cp=distributed.group.WORLD),
            checkpointer=saves,
            stop_requested=stop,
        )
        outcome = mb_loop.train(parts, state)
    return outcome.reason, outcome.message, outcome.step, saves.steps


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [2, 4])
def test_one_rank_receives_the_signal_and_all_leave_together_with_one_checkpoint(world_size):
    answers = run_ranks(stop_often, world_size, TIMES, timeout_seconds=120)
    assert all(rank == answers[0] for rank in answers)
    assert len(answers[0]) == TIMES
    for victim, reason, message, step, saved in answers[0]:
        assert (reason, saved) == ("signal", [step])
        assert message == f"stopped after step {step}: SIGUSR1 on rank {victim}"
    assert len({step for *_, step, _ in answers[0]}) > 5  # the moments were different ones
