"""Facts about the machine that a run is meant for."""

from mb_trainer.machine import first_gpu, gather_facts
from mb_trainer.preflight import find_problems
from mb_trainer.recipes import gpt_tiny


def test_the_driver_tells_the_gpu(tmp_path):
    (tmp_path / "0000:01:00.0").mkdir()
    (tmp_path / "0000:01:00.0" / "information").write_text("Model: \t\t NVIDIA H100 80GB HBM3\nIRQ: 64\n")
    assert first_gpu(tmp_path) == "h100"


def test_no_driver_and_unknown_models_are_no_gpu(tmp_path):
    (tmp_path / "0000:01:00.0").mkdir()
    (tmp_path / "0000:01:00.0" / "information").write_text("Model: NVIDIA T1000\n")
    assert (first_gpu(tmp_path), first_gpu(tmp_path / "none")) == (None, None)


def test_the_shell_wins_over_env_vars():
    known = gather_facts(8, env_vars={"NCCL_ALGO": "Ring", "A": 1}, environment={"NCCL_ALGO": "Tree"})
    assert known["env"] == {"NCCL_ALGO": "Tree", "A": "1"}


def test_another_machine_leaves_transformer_engine_unknown_until_told(tmp_path):
    elsewhere = gather_facts(8, gpu="h100", driver=tmp_path)
    told = gather_facts(8, gpu="h100", transformer_engine="2.20", driver=tmp_path)
    assert (elsewhere["gpu"], told["transformer_engine"], told["transformer_engine_version"]) == (
        "h100",
        True,
        "2.20",
    )


def test_without_a_gpu_deterministic_runs_need_no_algorithm_of_nccl(tmp_path):
    config = gpt_tiny()
    config.model.deterministic_mode, config.model.cross_entropy_loss_fusion = True, False

    def broken(**where):
        known = gather_facts(2, environment={}, **where)
        return [problem.id for problem in find_problems(config, facts=known) if problem.id == "V141"]

    (tmp_path / "driver" / "0000:01:00.0").mkdir(parents=True)
    (tmp_path / "driver" / "0000:01:00.0" / "information").write_text("Model: NVIDIA T1000\n")
    assert broken(driver=tmp_path / "none") == []
    assert broken(driver=tmp_path / "driver") == broken(driver=tmp_path / "none", gpu="h100") == ["V141"]
    assert config.dist.distributed_backend == "nccl"


def test_groups_of_groups_need_einops_unless_they_are_for_another_machine():
    config = gpt_tiny()
    config.ddp.num_distributed_optimizer_instances = 2

    def broken(**where):
        known = {**gather_facts(4, **where), "einops_installed": None if where else False}
        return [problem.id for problem in find_problems(config, facts=known) if problem.id == "T37"]

    assert gather_facts(4, gpu="h100").get("einops_installed") in (None, True)
    assert (broken(), broken(gpu="h100")) == (["T37"], [])


def test_local_checkpoints_need_a_library_that_is_there():
    config = gpt_tiny()
    config.checkpoint.non_persistent_ckpt_type = "local"
    config.checkpoint.non_persistent_local_ckpt_dir = "/local"
    known = gather_facts(1)
    assert "nvidia_resiliency_ext_installed" in known
    found = find_problems(config, facts={**known, "nvidia_resiliency_ext_installed": False})
    assert [problem.id for problem in found] == ["CK13"]
