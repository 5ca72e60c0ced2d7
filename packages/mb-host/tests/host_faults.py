"""What the tests of the mends run on a rank: checkpoints of the distributed optimizer, and uneven exchange."""

from contextlib import nullcontext
from pathlib import Path

import torch
from host_gpt import Trainer
from host_layouts import Layout
from megatron.core import parallel_state
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region

from mb_host.mends import without

LAYOUT = Layout(distributed_optimizer=True)
STEPS = 4


def unbroken(root: str, formats: list[str]) -> list[float]:
    """Train, save in each format, and train on; return the losses after the save."""
    trainer = Trainer(LAYOUT)
    for number in range(STEPS):
        trainer.step(number)
    for name in formats:
        folder = Path(root, name)
        folder.mkdir()
        trainer.save(str(folder), optimizer_format=name)
    return [trainer.step(number) for number in range(STEPS, 2 * STEPS)]


def resumed(root: str, optimizer_format: str, fault: str | None) -> list[float]:
    """Load and train on, with the mend called `fault` left out; return the losses."""
    with without(fault) if fault else nullcontext():
        trainer = Trainer(LAYOUT, seed=99)
        trainer.load(str(Path(root, optimizer_format)), optimizer_format=optimizer_format)
        return [trainer.step(number) for number in range(STEPS, 2 * STEPS)]


def unequal_parts(fault: str | None) -> tuple[list[float], list[float]]:
    """Gather one number of rank 0 and two of rank 1; return them, and the gradient of their sum on both ranks."""
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=2)
    group = parallel_state.get_tensor_model_parallel_group()
    part = torch.full((group.rank() + 1,), float(group.rank()), requires_grad=True)
    with without(fault) if fault else nullcontext():
        whole = gather_from_sequence_parallel_region(part, group=group, output_split_sizes=[1, 2])
        whole.sum().backward()
    return whole.tolist(), part.grad.tolist()
