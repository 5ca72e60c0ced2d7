"""What the tests of the mends run on a rank: checkpoints written and read by the distributed optimizer."""

from contextlib import nullcontext
from pathlib import Path

from host_gpt import Trainer
from host_layouts import Layout

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
