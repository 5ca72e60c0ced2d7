"""A plain PyTorch trainer with a recorder, and the proof that it resumes exactly.

python examples/plain_torch.py                           # proves the resume: two runs, one of them interrupted
python examples/plain_torch.py --out runs/a --stop-after 7   # trains, and stops after step 7
MB_VERIFY_RECORD=records/a python examples/plain_torch.py --out runs/a   # trains, and records the run
"""

import argparse
import os
import random
import sys
from pathlib import Path

import numpy
import torch

import mb_verify

STEPS = 20


def train(out: Path, *, stop_after: int | None) -> None:
    """Train from the newest checkpoint of `out`; save and stop at a multiple of `stop_after` or at the end."""
    for seed in (random.seed, numpy.random.seed, torch.manual_seed):
        seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    checkpoint, first = out / "checkpoint.pt", 0
    if checkpoint.is_file():
        loaded = torch.load(checkpoint)
        first = loaded["step"]
        model.load_state_dict(loaded["model"])
        optimizer.load_state_dict(loaded["optimizer"])
        torch.set_rng_state(loaded["random"])
    record = mb_verify.record_file_from_environment(os.environ)
    if record:
        record.start(first)
    for step in range(first + 1, STEPS + 1):
        if record:
            record.state(step - 1, mb_verify.read_torch_state(model, optimizer))
        batch = torch.randn(16, 4)
        loss = model(batch).sub(batch.sum(dim=1, keepdim=True)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if record:
            record.step(step, mb_verify.read_torch_step(losses={"loss": loss}, samples={"batch": batch}))
        if stop_after and step % stop_after == 0:
            break
    if record:
        record.state(step, mb_verify.read_torch_state(model, optimizer))
    out.mkdir(parents=True, exist_ok=True)
    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save({**state, "random": torch.get_rng_state()}, checkpoint)


def prove() -> int:
    """Run this script without and with an interruption, print the comparison and return its exit code."""

    def make_start(start: mb_verify.RunStart) -> None:
        stop = [f"--stop-after={start.leave_every}"] if start.leave_every else []
        mb_verify.run_start_command(start, [sys.executable, __file__, f"--out={start.run}", *stop])

    interruption = mb_verify.Interruption(steps=STEPS, step=7)
    proof = mb_verify.prove(make_start, interruption=interruption)
    print(mb_verify.proof_as_text(proof, interruption))
    return mb_verify.EXIT_CODES[proof.conclusion]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, help="folder of a run; without it the resume is proven")
    parser.add_argument("--stop-after", type=int, help="stop at a multiple of this step")
    options = parser.parse_args()
    sys.exit(prove() if options.out is None else train(options.out, stop_after=options.stop_after))
