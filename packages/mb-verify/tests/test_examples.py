"""The example trainer: its resume is exact, and one that loses the random state is found."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numpy")
pytest.importorskip("torch")

EXAMPLE = Path(__file__).parents[1] / "examples" / "plain_torch.py"


def prove(script):
    return subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_resume_of_the_example_is_exact():
    ended = prove(EXAMPLE)
    assert (ended.returncode, ended.stdout.splitlines()[-1]) == (
        0,
        "equal, bit for bit: 20 steps on 1 rank, interrupted at 7",
    ), ended.stderr


@pytest.mark.slow
def test_a_resume_without_the_random_state_is_found(tmp_path):
    faulty = tmp_path / "faulty.py"
    faulty.write_text(EXAMPLE.read_text().replace("torch.set_rng_state", "str"))
    ended = prove(faulty)
    assert (ended.returncode, "random streams: torch_rng_state, after step 7" in ended.stdout) == (1, True)
