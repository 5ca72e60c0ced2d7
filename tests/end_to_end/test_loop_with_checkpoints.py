"""mb-loop's own state with mb-checkpoint's checkpointer, without the trainer."""

import itertools

import pytest
import torch
import yaml
from megatron.core import parallel_state
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint

import mb_host
import mb_loop
from mb_checkpoint import CheckpointConfig, DefaultCheckpointManager, RunCheckpointer


def train(folder, *, steps, expected_start):
    """Train a linear model up to a step, from the newest checkpoint of a folder; return the losses."""
    if not parallel_state.model_parallel_is_initialized():
        parallel_state.initialize_model_parallel()

    class Model(torch.nn.Linear):
        def sharded_state_dict(self, prefix="", sharded_offsets=(), metadata=None):
            return make_sharded_tensors_for_checkpoint(self.state_dict(keep_vars=True), prefix)

    torch.manual_seed(expected_start)  # the weights of the checkpoint replace those of this seed
    model = Model(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = mb_loop.LoopState.of(train_iters=steps, save_interval=2)
    state.cfg.checkpoint.save = folder
    state.cfg.train.manual_gc = True
    checkpointer = RunCheckpointer(
        DefaultCheckpointManager(CheckpointConfig(save=folder, load=folder), log_outcomes=False),
        state=state,
        model=[model],
        optimizer=optimizer,
        scheduler=None,
    )
    assert checkpointer.load().step == state.train_state.step == expected_start
    found = []

    def forward_step(iterator, model):
        inputs = torch.full((1, 4), 1.0 + next(iterator))

        def loss_function(outputs):
            loss = outputs.square().mean()
            found.append(float(loss.detach()))
            return loss, {"loss": loss.detach()}

        return model(inputs), loss_function

    parts = mb_loop.TrainParts(
        forward_step_func=forward_step,
        model=model,
        optimizer=optimizer,
        train_data_iterator=itertools.count(state.train_state.step),
        checkpointer=checkpointer,
    )
    mb_loop.train(parts, state)
    return found


def interrupted_and_not(folder):
    """Return the losses of four steps, and of two and two more."""
    uninterrupted = train(f"{folder}/one", steps=4, expected_start=0)
    first = train(f"{folder}/two", steps=2, expected_start=0)
    return uninterrupted, first + train(f"{folder}/two", steps=4, expected_start=2)


@pytest.mark.slow
def test_the_loops_own_state_is_saved_and_resumed(tmp_path):
    ((uninterrupted, resumed),) = mb_host.run_ranks(interrupted_and_not, 1, str(tmp_path))
    assert uninterrupted == resumed
    saved = yaml.safe_load((tmp_path / "two" / "iter_0000004" / "run_config.yaml").read_text())
    assert saved["train"] | {"manual_gc": True, "exit_signal": "SIGTERM"} == saved["train"]
    assert saved["checkpoint"]["save_interval"] == 2
