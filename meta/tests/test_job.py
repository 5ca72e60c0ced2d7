"""What is settled before anything is built: environment variables and places."""

from mb_config import Provenance
from mb_trainer.job import last_step, overlap_environment, set_environment
from mb_trainer.preflight import settle
from mb_trainer.recipes import gpt_tiny
from mb_trainer.run_folder import RunFolder, place


def test_the_shell_wins_over_env_vars_and_this_is_said():
    said, environment = [], {"A": "shell"}
    set_environment({"A": "recipe", "B": 1}, say=said.append, environment=environment)
    assert environment == {"A": "shell", "B": "1"}
    assert said == ["env_vars.A: the shell's value 'shell' wins over 'recipe'"]


def test_what_has_no_place_goes_into_the_run_folder(tmp_path):
    config = gpt_tiny()
    config.checkpoint.save = "/elsewhere"
    place(config, RunFolder(tmp_path), Provenance())
    assert (config.checkpoint.save, config.checkpoint.load) == ("/elsewhere", "/elsewhere")
    assert config.logger.tensorboard_dir == str(tmp_path / "tensorboard")


def test_the_last_step_is_the_trackers(tmp_path):
    assert last_step(str(tmp_path)) is None
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("12\n")
    assert last_step(str(tmp_path)) == 12


def test_what_was_asked_for_and_will_not_be_is_a_warning():
    config = gpt_tiny()
    config.comm_overlap.tp_comm_overlap = True
    settled = settle(
        config, world_size=1, provenance=Provenance()
    )  # TP is 1, and there is no Transformer Engine
    assert [warning.id for warning in settled.warnings] == ["O02", "O04"]


def test_a_layout_that_overlaps_on_hopper_gets_one_queue_unless_the_user_chose():
    config = gpt_tiny()
    config.model.tensor_model_parallel_size = 2
    chosen = {"NVTE_FWD_LAYERNORM_SM_MARGIN": "8"}
    assert overlap_environment(config, world_size=4, gpu="h100", environment=chosen) == {
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "NVTE_BWD_LAYERNORM_SM_MARGIN": "16",
    }
