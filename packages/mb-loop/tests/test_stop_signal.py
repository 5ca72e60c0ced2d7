"""`train.exit_signal_handler`: the loop alone stops on a signal, at the end of the step."""

import multiprocessing
import os
import signal
import threading
import time

import pytest

torch = pytest.importorskip("torch")

import mb_loop  # noqa: E402
from mb_loop import bridge_api  # noqa: E402
from mb_loop.loop_state import LoopConfig, TrainSection  # noqa: E402


class Saves(mb_loop.Checkpointer):
    def __init__(self):
        self.steps = []

    def save(self, step, *, non_persistent):
        self.steps.append(step)
        return [mb_loop.SaveResult(step=step, non_persistent=non_persistent, written=True)]

    def poll(self, *, blocking):
        return []


def run(*, send, checkpointer=None, number=signal.SIGTERM, **keywords):
    """Train three steps, sending a signal to this process in the second one."""
    manager = mb_loop.CallbackManager()
    manager.register(
        "on_train_step_end",
        lambda context: os.kill(os.getpid(), send) if context.state.train_state.step == 2 else None,
    )
    section = TrainSection(train_iters=3, exit_signal_handler=True, exit_signal=number)
    model = torch.nn.Linear(1, 1)
    return bridge_api.train(
        lambda iterator, model: (model(torch.ones(1)).sum(), lambda loss: (loss, {"loss": loss.detach()})),
        [model], torch.optim.SGD(model.parameters(), lr=0.1), None, None, None,
        mb_loop.LoopState(cfg=LoopConfig(train=section)),
        callbacks=manager, checkpointer=checkpointer, **keywords,
    )  # fmt: skip


@pytest.fixture
def caught():
    """A handler of the caller, which must be back afterwards."""
    received = []

    def handler(number, frame):
        received.append(number)

    previous = signal.signal(signal.SIGUSR1, handler)
    yield received
    assert signal.getsignal(signal.SIGUSR1) is handler
    signal.signal(signal.SIGUSR1, previous)


def test_a_signal_saves_and_stops_at_the_end_of_the_step():
    saves = Saves()
    outcome = run(send=signal.SIGTERM, checkpointer=saves)
    assert (outcome.reason, outcome.step, outcome.saved, saves.steps) == ("signal", 2, True, [2])
    assert outcome.message == "stopped after step 2: SIGTERM on rank 0"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_the_signal_is_the_configured_one_and_the_previous_handler_returns(caught):
    assert run(send=signal.SIGUSR1, number=signal.SIGUSR1).step == 2
    assert caught == []


def test_with_another_source_an_unhandled_signal_stops_as_well():
    assert run(send=signal.SIGTERM, stop_requested=lambda step: None).step == 2
    assert run(send=signal.SIGTERM, stop_requested=lambda step: "requested" if step == 2 else None).step == 2


def test_with_another_source_a_handled_signal_is_the_callers(caught):
    outcome = run(send=signal.SIGUSR1, number=signal.SIGUSR1, stop_requested=lambda step: None)
    assert (outcome.reason, caught) == ("finished", [signal.SIGUSR1])


def test_a_handler_is_released_once(caught):
    handler = mb_loop.DistributedSignalHandler(signal.SIGUSR1)
    assert (handler.release(), handler.released) == (False, False)  # nothing is entered
    with handler:
        assert signal.getsignal(signal.SIGUSR1) != signal.SIG_DFL
        assert (handler.release(), handler.released, handler.release()) == (True, True, False)
        signal.raise_signal(signal.SIGUSR1)
    assert caught == [signal.SIGUSR1]


def test_a_signal_that_cannot_be_handled_is_rejected():
    with pytest.raises(mb_loop.TrainSettingsError, match=r"train.exit_signal: SIGKILL cannot be handled"):
        run(send=signal.SIGTERM, number=signal.SIGKILL)


def test_another_thread_than_the_main_one_is_rejected():
    errors = []

    def work():
        try:
            with mb_loop.DistributedSignalHandler():
                pass
        except mb_loop.TrainSettingsError as error:
            errors.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(errors) == 1
    assert errors[0].startswith("train.exit_signal_handler: the loop does not run in the main thread")


def test_a_process_that_is_forked_in_the_meantime_can_be_terminated():
    with mb_loop.DistributedSignalHandler():
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        child.start()
        time.sleep(0.2)
        child.terminate()
        child.join(20)
        code = child.exitcode
        child.kill()
    assert code == -signal.SIGTERM
