"""Conditions under which checks on a GPU are skipped, and settings of their small runs."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from runs import losses

ON_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]


def needs(*modules: str) -> pytest.MarkDecorator:
    """Skip where a module is not installed."""
    missing = [name for name in modules if find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


def needs_capability(major: int) -> pytest.MarkDecorator:
    """Skip on GPUs of an older generation: 9 is Hopper, 10 Blackwell."""
    found = torch.cuda.get_device_capability()[0] if torch.cuda.is_available() else 0
    return pytest.mark.skipif(found < major, reason=f"compute capability {found}, and {major} is needed")


ENGINE = needs("transformer_engine")
TEN_STEPS = ["train.train_iters=10", "checkpoint.save_interval=5", "validation.eval_interval=null"]
BF16 = ["model.hidden_size=64", "mixed_precision=bf16_mixed"]


def learned(out: Path, steps: int = 10) -> bool:
    """Return whether a run completed its steps, and the loss fell."""
    found = losses(out)
    return list(found) == list(range(1, steps + 1)) and found[steps] < found[1]


def log_of(out: Path) -> str:
    """Return the text of a run's log."""
    return (out / "log.txt").read_text()
