"""GPUs from each source, visible GPUs, and the CPUs that ranks are bound to."""

import json
import stat
import sys

import pytest

from mb_launch.hardware.gpus import (
    GpuFacts,
    GpuSources,
    describe_gpus,
    kernel_bus_id,
    read_gpus,
    visible_gpus,
)
from mb_launch.hardware.numa import (
    BINDING,
    as_cpu_list,
    bind_this_process,
    choose_bindings,
    cpus_in,
    numa_nodes,
    set_numa_environment,
)

H200 = [
    GpuFacts(
        name="NVIDIA H200",
        uuid=f"GPU-{index}abc",
        bus_id=f"0000:{index}7:00.0",
        memory_gib=143771 / 1024,
        driver_version="580.159.03",
        numa_node=index // 2,
    )
    for index in range(4)
]
"""Four GPUs on two nodes."""


def program(path, text):
    path.write_text(f"#!{sys.executable}\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.fixture
def machine(tmp_path):
    """A machine whose four GPUs only nvidia-smi lists, with a /sys of two NUMA nodes with CPUs."""
    for gpu in H200:
        device = tmp_path / "sys/bus/pci/devices" / gpu.bus_id
        device.mkdir(parents=True)
        (device / "numa_node").write_text(f"{gpu.numa_node}\n")
    for node, cpus in {0: "0-3,8-11\n", 1: "4-7,12-15\n", 2: "\n"}.items():
        folder = tmp_path / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(cpus)
    lines = [
        f"{gpu.name}, {gpu.uuid}, 0000{gpu.bus_id.upper()}, 143771, {gpu.driver_version}" for gpu in H200
    ]
    return GpuSources(
        driver=tmp_path / "driver/gpus",
        device_files=tmp_path / "dev",
        system=tmp_path / "sys",
        nvidia_smi=program(tmp_path / "nvidia-smi", f"print({chr(10).join(lines)!r})"),
        python=str(tmp_path / "no-python"),
    )


def by_the_driver(machine):
    for gpu in H200:
        folder = machine.driver / gpu.bus_id
        folder.mkdir(parents=True)
        text = (
            f"Model: \t\t {gpu.name}\nIRQ:   \t 64\nGPU UUID: \t {gpu.uuid}\nBus Location: \t {gpu.bus_id}\n"
        )
        (folder / "information").write_text(text)
    (machine.driver.parent / "version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.03  Release Build\n"
    )


def test_nvidia_smi_is_used_if_the_driver_has_no_folder(machine):
    assert list(read_gpus(sources=machine)) == H200


def test_the_folder_of_the_driver_needs_no_subprocess_and_has_no_memory_size(machine, tmp_path):
    by_the_driver(machine)
    program(tmp_path / "nvidia-smi", "raise SystemExit('was called')")
    facts = ("name", "uuid", "bus_id", "driver_version", "numa_node")
    found = read_gpus(sources=machine)
    assert [[getattr(gpu, each) for each in facts] for gpu in found] == [
        [getattr(gpu, each) for each in facts] for gpu in H200
    ]
    assert {gpu.memory_gib for gpu in found} == {None}
    assert [gpu.name for gpu in read_gpus(details=True, sources=machine)] == ["NVIDIA H200"] * 4


def test_torch_is_used_in_a_subprocess_if_no_other_source_lists_a_gpu(machine, tmp_path):
    answer = [{"name": "NVIDIA H200", "memory": 2**37, "uuid": "GPU-0abc", "bus": [0, 7, 0]}]
    seen = "import os; assert 'CUDA_VISIBLE_DEVICES' not in os.environ"
    sources = GpuSources(
        driver=machine.driver,
        device_files=machine.device_files,
        system=machine.system,
        nvidia_smi=program(tmp_path / "nvidia-smi", "raise SystemExit(9)"),
        python=program(tmp_path / "python", f"{seen}; print({json.dumps(answer)!r})"),
    )
    assert read_gpus(sources=sources) == ()  # no device file, no process
    machine.device_files.mkdir()
    (machine.device_files / "nvidia0").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "3")
        (gpu,) = read_gpus(sources=sources)
    assert (gpu.name, gpu.memory_gib, gpu.bus_id, gpu.numa_node) == ("NVIDIA H200", 128.0, "0000:07:00.0", 0)


@pytest.mark.parametrize("text", ["raise SystemExit(9)", "print('No devices were found')", "print('a, b')"])
def test_an_nvidia_smi_that_fails_or_prints_something_else_lists_no_gpu(machine, tmp_path, text):
    program(tmp_path / "nvidia-smi", text)
    assert read_gpus(sources=machine) == ()


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (None, [0, 1, 2, 3]),
        ("2,0", [2, 0]),
        ("GPU-3a,1", [3, 1]),
        ("1,-1,2", [1]),
        ("0,7,1", [0]),
        ("GPU-,0", []),
        ("", []),
        ("MIG-0abc/1/0,1", [None, 1]),
    ],
)
def test_visible_gpus(selection, expected):
    environment = {} if selection is None else {"CUDA_VISIBLE_DEVICES": selection}
    visible = visible_gpus(H200, environment)
    assert list(visible) == [None if index is None else H200[index] for index in expected]


def test_indices_of_different_models_are_ambiguous_unless_ordered_by_address():
    mixed = [H200[0], GpuFacts(name="NVIDIA A100-SXM4-80GB", uuid="GPU-9")]
    assert visible_gpus(mixed, {}) == (None, None)
    assert visible_gpus(mixed, {"CUDA_VISIBLE_DEVICES": "GPU-9"}) == (mixed[1],)
    assert visible_gpus(mixed, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}) == tuple(mixed)


def test_one_line_about_the_gpus():
    assert describe_gpus(H200) == "4 x NVIDIA H200, 140.4 GiB each, driver 580.159.03, NUMA nodes 0, 0, 1, 1"
    assert describe_gpus([GpuFacts(name="NVIDIA H200")]) == "1 x NVIDIA H200"


def test_addresses_are_in_the_notation_of_the_kernel():
    assert kernel_bus_id("00000000:17:00.0") == "0000:17:00.0"
    assert kernel_bus_id("00010000:0A:1F.0") == "10000:0a:1f.0"
    assert kernel_bus_id("[N/A]") is None


def test_ranks_are_bound_to_the_cpus_next_to_their_gpus(machine):
    environment = {"CUDA_VISIBLE_DEVICES": "0,1,3,2"}
    set_numa_environment(environment, processes=4, allowed=range(14), sources=machine)
    calls = []
    lines = [
        bind_this_process(environment, local_rank=rank, bind=lambda *arguments: calls.append(arguments))
        for rank in range(4)
    ]
    near, far = (0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13)
    assert calls == [(0, near), (0, near), (0, far), (0, far)]
    assert set(lines) == {
        "NUMA binding: ranks 0-1: node 0 (CPUs 0-3,8-11); ranks 2-3: node 1 (CPUs 4-7,12-13)"
    }


def test_a_rank_without_a_known_gpu_or_an_allowed_cpu_is_not_bound(machine):
    bindings = choose_bindings([None, *H200[1:]], processes=5, allowed=[0], system=machine.system)
    assert [each and each.cpus for each in bindings] == [None, "0", None, None, None]


@pytest.mark.parametrize("reason", ["switched off", "one node", "no GPU", "hidden"])
def test_nothing_is_bound(machine, reason):
    environment = {BINDING: "[]"}
    if reason == "one node":
        (machine.system / "devices/system/node/node1/cpulist").write_text("\n")
    if reason == "no GPU":
        program(machine.system.parent / "nvidia-smi", "raise SystemExit(9)")
    if reason == "hidden":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    enabled = reason != "switched off"
    set_numa_environment(environment, processes=2, enabled=enabled, allowed=range(16), sources=machine)
    assert bind_this_process(environment, local_rank=0, bind=lambda *_: pytest.fail("bound")) is None


def test_cpus_that_are_no_longer_available_do_not_end_the_run(machine):
    def refuse(*_):
        raise OSError(22, "Invalid argument")

    environment = {}
    set_numa_environment(environment, processes=1, allowed=range(16), sources=machine)
    line = bind_this_process(environment, local_rank=0, bind=refuse)
    assert line.endswith("([Errno 22] Invalid argument); nothing is bound")


def test_lists_of_cpus_are_in_the_notation_of_the_kernel(machine):
    assert numa_nodes(system=machine.system) == {
        0: (0, 1, 2, 3, 8, 9, 10, 11),
        1: (4, 5, 6, 7, 12, 13, 14, 15),
    }
    assert as_cpu_list(cpus_in("0-3,8,10-11")) == "0-3,8,10-11"
    with pytest.raises(ValueError, match="invalid literal"):
        cpus_in("none")
