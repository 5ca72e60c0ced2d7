import json
import subprocess
import sys
from dataclasses import dataclass

import pytest

from mb_resilience import flight_recorder_environment, start_flight_recorder
from mb_resilience.hangs.flight_recorder import conflicting_variables


@dataclass(kw_only=True)
class Settings:
    """Fields of mb-config's DistributedInitConfig that are read."""

    flight_recorder_dump_path: str | None = "/tmp/trace_"
    flight_recorder_trace_buffer_size: int = 2000
    flight_recorder_dump_on_timeout: bool = True
    flight_recorder_include_stack_trace: bool = False
    flight_recorder_include_only_active: bool = True
    flight_recorder_extra_dump_on_exec: bool = True


ALL = {
    "TORCH_FR_DUMP_TEMP_FILE": "/tmp/trace_",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/tmp/trace_",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "TORCH_INCLUDE_STACK_TRACE": "0",
    "TORCH_INCLUDE_ONLY_ACTIVE": "1",
    "TORCH_NCCL_EXTRA_DUMP_ON_EXEC": "1",
}


def test_every_setting_has_a_variable():
    assert flight_recorder_environment(Settings(), environment={}) == ALL
    changed = Settings(
        flight_recorder_trace_buffer_size=10,
        flight_recorder_dump_on_timeout=False,
        flight_recorder_include_stack_trace=True,
        flight_recorder_include_only_active=False,
        flight_recorder_extra_dump_on_exec=False,
    )
    assert list(flight_recorder_environment(changed, environment={}).values())[2:] == [
        "10",
        "0",
        "1",
        "0",
        "0",
    ]


def test_without_a_path_nothing_is_set():
    assert flight_recorder_environment(Settings(flight_recorder_dump_path=None), environment={}) == {}


def test_variables_that_are_set_are_kept():
    set_already = {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0", "TORCH_FR_BUFFER_SIZE": "7"}
    added = flight_recorder_environment(Settings(), environment=set_already)
    assert added.keys() == ALL.keys() - {"TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_TRACE_BUFFER_SIZE"}
    assert conflicting_variables(Settings(), environment=set_already) == set_already


@pytest.mark.parametrize("name", ["TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"])
def test_conflicting_buffer_size_is_reported_if_the_recorder_is_on(name):
    off = Settings(flight_recorder_dump_path=None)
    assert conflicting_variables(Settings(), environment={name: "7"}) == {name: "7"}
    assert conflicting_variables(Settings(), environment={name: "2000"}) == {}
    assert conflicting_variables(off, environment={name: "7"}) == {}


@pytest.mark.parametrize("path", [None, "/elsewhere/trace_"])
def test_path_of_the_environment_takes_precedence_and_sets_the_other_variables(path):
    set_already = {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/shell/trace_"}
    added = flight_recorder_environment(Settings(flight_recorder_dump_path=path), environment=set_already)
    assert added == {
        **{name: value for name, value in ALL.items() if name not in set_already},
        "TORCH_FR_DUMP_TEMP_FILE": "/shell/trace_",
    }


def test_files_in_a_folder_have_the_expected_prefix(tmp_path):
    prefixes = {f"{tmp_path}": f"{tmp_path}/_dump_", f"{tmp_path}/later/": f"{tmp_path}/later/_dump_"}
    for folder, prefix in prefixes.items():
        added = flight_recorder_environment(Settings(flight_recorder_dump_path=folder), environment={})
        assert added["TORCH_FR_DUMP_TEMP_FILE"] == prefix


RECORDED = """
import json, os, sys
os.environ.update(json.loads(sys.argv[1]))
import torch, torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
for _ in range(5):
    dist.all_reduce(torch.ones(1))
print(len(json.loads(torch._C._distributed_c10d._dump_fr_trace_json())["entries"]))
dist.destroy_process_group()
"""


def test_torch_records_the_configured_number_of_collectives():
    torch = pytest.importorskip("torch")
    if not hasattr(torch._C._distributed_c10d, "_dump_fr_trace_json"):
        pytest.skip("this torch records collectives of NCCL only")
    added = flight_recorder_environment(Settings(flight_recorder_trace_buffer_size=3), environment={})
    command = [sys.executable, "-c", RECORDED, json.dumps(added)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "3\n"


def test_the_recorder_gets_its_variables_and_a_folder_and_keeps_those_of_the_shell(tmp_path):
    lines, environment = [], {"TORCH_INCLUDE_STACK_TRACE": "1"}
    start_flight_recorder(Settings(flight_recorder_dump_path=None), log=lines.append, environment=environment)
    assert (lines, list(environment)) == ([], ["TORCH_INCLUDE_STACK_TRACE"])
    settings = Settings(flight_recorder_dump_path=f"{tmp_path}/dumps/")
    start_flight_recorder(settings, log=lines.append, environment=environment)
    assert lines == ["dist.flight_recorder_dump_path: the shell's TORCH_INCLUDE_STACK_TRACE=1 is kept"]
    assert environment["TORCH_FR_DUMP_TEMP_FILE"] == f"{tmp_path}/dumps/_dump_"
    assert (len(environment), (tmp_path / "dumps").is_dir()) == (7, True)
