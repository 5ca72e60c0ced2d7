"""Overhead of the loop per step in microseconds, compared to a bare `while` around the same work.

Run: python benchmarks/bench_loop.py. The model, the loss function and the optimizer do next to nothing (about a
microsecond), so what is left is the loop; one variant averages a real loss, which is a few torch operations. All
variants run in turn in one process, several times; the best processor time of each is shown, as a difference and as a
ratio to the bare loop.
"""

import time

import torch

import mb_loop


class Nothing:
    """Model, optimizer and schedule of an empty step."""

    param_groups = ({"params": (0,), "lr": 0.1},)
    training = True

    def train(self, mode=True):
        """Do nothing."""

    def zero_grad(self):
        """Do nothing."""

    def step(self):
        """Do nothing."""

    def __init__(self, losses=()):
        self.losses = list(losses)

    def forward_backward(self, **arguments):
        """Return the losses that were passed."""
        return self.losses


class Listener(mb_loop.Callback):
    """Callback that reads one number."""

    def on_train_step_end(self, context):
        """Record the number."""
        self.last = context.result.step


class Rows(mb_loop.Callback):
    """Callback that stores one row of losses per step on the device and reads all rows every hundred steps."""

    def __init__(self):
        self.rows = []

    def on_train_step_end(self, context):
        """Store a row; read all rows every hundred steps."""
        self.rows.append(torch.stack(list(context.result.losses.values())))
        if len(self.rows) == 100:
            torch.stack(self.rows).tolist()
            self.rows.clear()


class Poller(mb_loop.Checkpointer):
    """Checkpointer that is only polled."""

    def save(self, step, *, non_persistent):
        """Do nothing."""
        return ()

    def poll(self, *, blocking):
        """Do nothing."""
        return ()


def bare(steps):
    nothing = Nothing()
    step = 0
    while step < steps:
        nothing.zero_grad()
        nothing.forward_backward(
            forward_step_func=None, data_iterator=None, model=None, seq_length=None, decoder_seq_length=None,
            num_microbatches=1, micro_batch_size=1, forward_only=False,
        )  # fmt: skip
        nothing.step()
        step += 1


def looped(steps, *, losses=(), **keywords):
    nothing = Nothing(losses)
    parts = mb_loop.TrainParts(
        forward_step_func=lambda iterator, model: None,
        model=[nothing],
        optimizer=nothing,
        forward_backward_func=nothing.forward_backward,
        **keywords,
    )
    mb_loop.train(parts, mb_loop.LoopState.of(train_iters=steps))


def main(steps=20_000, repeats=7):
    variants = {
        "bare while": lambda: bare(steps),
        "mb_loop.train": lambda: looped(steps),
        "with one callback": lambda: looped(steps, callbacks=[Listener()]),
        "with a loss (torch, CPU)": lambda: looped(steps, losses=[{"loss": torch.ones(2)}]),
        "the same, and rows kept for metrics": lambda: looped(
            steps, losses=[{"loss": torch.ones(2)}], callbacks=[Rows()]
        ),
        "with a checkpointer to poll": lambda: looped(steps, checkpointer=Poller()),
    }
    best = dict.fromkeys(variants, float("inf"))
    for _ in range(repeats):
        for name, run in variants.items():
            begin = time.process_time()
            run()
            best[name] = min(best[name], 1e6 * (time.process_time() - begin) / steps)
    floor = best["bare while"]
    for name, microseconds in best.items():
        added, ratio = microseconds - floor, microseconds / floor
        print(f"{name:36} {microseconds:6.2f} us a step, {added:+6.2f} us, {ratio:5.1f} x the bare loop")


if __name__ == "__main__":
    main()
