"""Facts about the machine that a run is intended for."""

import pytest

from mb_config.preflight import facts
from mb_config.preflight.facts import TargetMachine
from mb_launch import GpuSources
from mb_launch.hardware.gpus import THIS_MACHINE
from mb_trainer.recipes import gpt_tiny
from mb_trainer.run.preflight import CHECKS, target_facts


def gather_facts(world_size, *, env_vars=None, environment=None, sources=THIS_MACHINE, **target):
    """Return the facts about a machine."""
    known = TargetMachine(world_size=world_size, **target)
    return target_facts(known, env_vars, environment=environment, sources=sources)


def machine_of(driver):
    """Return the sources of a machine that only a driver folder describes."""
    return GpuSources(driver=driver, device_files=driver, system=driver, nvidia_smi="no-such-program")


def test_the_shell_wins_over_env_vars():
    known = gather_facts(8, env_vars={"NCCL_ALGO": "Ring", "A": 1}, environment={"NCCL_ALGO": "Tree"})
    assert known["env"] == {"NCCL_ALGO": "Tree", "A": "1"}


def test_transformer_engine_of_another_machine_is_unknown_unless_given(tmp_path):
    elsewhere = gather_facts(8, gpu="h100", sources=machine_of(tmp_path))
    given = gather_facts(8, gpu="h100", transformer_engine="2.20", sources=machine_of(tmp_path))
    assert (elsewhere["gpu"], given["transformer_engine"], given["transformer_engine_version"]) == (
        "h100",
        True,
        "2.20",
    )


def test_without_a_gpu_an_installed_transformer_engine_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setattr(facts, "installed_version", lambda module, distribution: "2.9.0")
    here = gather_facts(1, sources=machine_of(tmp_path))
    assert (here["cpu"], here["transformer_engine"], here["transformer_engine_version"]) == (
        True,
        False,
        None,
    )
    meant = gather_facts(1, gpu="h100", sources=machine_of(tmp_path))
    assert (meant["transformer_engine"], meant["transformer_engine_version"]) == (True, "2.9.0")


def test_gpus_that_are_hidden_do_not_count(tmp_path):
    (tmp_path / "0000:01:00.0").mkdir()
    (tmp_path / "0000:01:00.0" / "information").write_text("Model: NVIDIA H100 80GB HBM3\n")

    def seen(**variables):
        known = gather_facts(1, environment=variables, sources=machine_of(tmp_path))
        return known["cpu"], known["gpu"]

    assert seen() == seen(CUDA_VISIBLE_DEVICES="0") == (False, "h100")
    assert seen(CUDA_VISIBLE_DEVICES="") == seen(CUDA_VISIBLE_DEVICES="-1") == (True, None)
    hidden = gather_facts(
        1, env_vars={"CUDA_VISIBLE_DEVICES": ""}, environment={}, sources=machine_of(tmp_path)
    )
    assert hidden["cpu"] is True


def test_without_a_gpu_deterministic_runs_need_no_algorithm_of_nccl(tmp_path):
    config = gpt_tiny()
    config.model.deterministic_mode, config.model.cross_entropy_loss_fusion = True, False

    def broken(**where):
        known = gather_facts(2, environment={}, **where)
        return [problem.id for problem in CHECKS.find_problems(config, facts=known) if problem.id == "V141"]

    (tmp_path / "driver" / "0000:01:00.0").mkdir(parents=True)
    (tmp_path / "driver" / "0000:01:00.0" / "information").write_text("Model: NVIDIA T1000\n")
    assert broken(sources=machine_of(tmp_path / "none")) == []
    assert (
        broken(sources=machine_of(tmp_path / "driver"))
        == broken(sources=machine_of(tmp_path / "none"), gpu="h100")
        == ["V141"]
    )
    assert config.dist.distributed_backend == "nccl"


def test_groups_of_groups_need_einops_unless_they_are_for_another_machine():
    config = gpt_tiny()
    config.ddp.num_distributed_optimizer_instances = 2

    def broken(**where):
        known = {**gather_facts(4, **where), "einops_installed": None if where else False}
        return [problem.id for problem in CHECKS.find_problems(config, facts=known) if problem.id == "T37"]

    assert gather_facts(4, gpu="h100").get("einops_installed") in (None, True)
    assert (broken(), broken(gpu="h100")) == (["T37"], [])


def test_local_checkpoints_need_a_library_that_is_there():
    config = gpt_tiny()
    config.checkpoint.non_persistent_ckpt_type = "local"
    config.checkpoint.non_persistent_local_ckpt_dir = "/local"
    known = gather_facts(1)
    assert "nvidia_resiliency_ext_installed" in known
    found = CHECKS.find_problems(config, facts={**known, "nvidia_resiliency_ext_installed": False})
    assert [problem.id for problem in found] == ["CK13"]


def test_a_version_of_nvrx_that_megatron_cannot_be_imported_with_is_refused_before_the_import(tmp_path):
    wheel = tmp_path / "nvidia_resiliency_ext-0.4.1.dist-info"
    wheel.mkdir()
    (wheel / "METADATA").write_text("Metadata-Version: 2.1\nName: nvidia-resiliency-ext\nVersion: 0.4.1\n")
    (tmp_path / "nvidia_resiliency_ext").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        known = gather_facts(1)
    found = [
        str(problem) for problem in CHECKS.find_problems(gpt_tiny(), facts=known) if problem.id == "CK50"
    ]
    assert len(found) == 1
    assert "nvidia-resiliency-ext 0.4.1 is installed" in found[0]


@pytest.fixture
def four_gpus(tmp_path):
    """Return the sources of a machine with four GPUs."""
    for index in range(4):
        folder = tmp_path / f"0000:0{index}:00.0"
        folder.mkdir()
        (folder / "information").write_text(f"Model: NVIDIA H100 80GB HBM3\nGPU UUID: GPU-{index}\n")
    return machine_of(tmp_path)


@pytest.mark.parametrize(
    ("environment", "number"),
    [
        ({}, 4),
        ({"CUDA_VISIBLE_DEVICES": "0,2"}, 2),
        ({"CUDA_VISIBLE_DEVICES": ""}, None),
    ],
)
def test_gpus_of_this_machine_are_those_that_are_visible(four_gpus, environment, number):
    known = gather_facts(1, sources=four_gpus, environment=environment)
    assert known["gpus_per_node"] == number


def test_gpus_of_another_machine_are_those_that_nvlink_connects():
    found = [gather_facts(1, gpu=gpu)["gpus_per_node"] for gpu in ("h100", "gb200", "l4")]
    assert found == [8, 72, None]


def test_apex_is_assumed_on_another_machine_only_if_the_user_declares_it(four_gpus):
    name = "fused_softmax_installed"
    assert gather_facts(1, gpu="h100")[name] is False
    assert gather_facts(1, gpu="h100", apex=True)[name] is True
    here = gather_facts(1, apex=True, sources=four_gpus, environment={})
    assert here[name] is False  # on this machine the installed modules decide, not `apex`


def test_processes_of_this_machine_are_at_most_its_gpus(four_gpus):
    def broken(processes):
        known = gather_facts(8, local_world_size=processes, sources=four_gpus, environment={})
        return [
            problem.id for problem in CHECKS.find_problems(gpt_tiny(), facts=known) if problem.id == "H05"
        ]

    assert [broken(processes) for processes in (None, 4, 8)] == [[], [], ["H05"]]
