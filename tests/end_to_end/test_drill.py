"""`mb drill`: a run on two ranks recovers from faults, with results equal to those of the undisturbed run."""

import json

import pytest
from runs import mb


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["nan", pytest.param("damaged", marks=pytest.mark.matrix)])
def test_a_run_recovers_from_nan_and_a_damaged_checkpoint(overrides, fault):
    faults = [f"--faults={fault}", "--steps=6", "--save-every=2", "--seed=4", "--json"]
    layout = ["--nproc=2", "model.tensor_model_parallel_size=2", "train.micro_batch_size=2"]
    ended = mb("drill", *faults, *layout, *overrides)
    assert ended.returncode == 0, ended.stderr + ended.stdout
    found = {each["fault"]: each for each in json.loads(ended.stdout)["faults"]}
    assert {name: (each["restarts"], each["equal"]) for name, each in found.items()} == {fault: (1, True)}
