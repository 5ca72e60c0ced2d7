"""Parts of nvidia-resiliency-ext that restarts use: recorded from 0.3.0 and 0.7.0, compared with the installed one.

The wheels of 0.7.0 need glibc 2.39, so its signatures were recorded from the files of the wheel.
"""

import ast
import importlib.metadata
import importlib.util
import json
from pathlib import Path

import pytest

from mb_resilience import InProcessRestartConfig
from mb_resilience.restarts.arguments import wrapper_times

RECORDED = json.loads((Path(__file__).parent / "nvrx_signatures.json").read_text())
PASSED = {
    "Wrapper.__init__": {
        *wrapper_times(InProcessRestartConfig()),
        *(
            "store_factory",
            "store_kwargs",
            "initialize",
            "abort",
            "finalize",
            "health_check",
            "rank_assignment",
        ),
        "monitor_process_logfile",
    },
    "Tree.__init__": {"layers", "world_size_filter"},
    "Layer.fields": {"min_ranks", "max_ranks", "key_or_fn", "flag"},
    "State.fields": {"iteration", "world_size", "active_world_size"},
    "InterruptionRecord.fields": {"rank", "interruption"},
}
"""Arguments that are passed, and fields that are read."""


def signatures(folder: Path) -> dict[str, list[str]]:
    """Return the parameters of methods, the fields of dataclasses, and the bases of classes."""
    found = {}
    for node in (node for file in folder.glob("*.py") for node in ast.parse(file.read_text()).body):
        if isinstance(node, ast.ClassDef):
            found[f"{node.name}.bases"] = [ast.unparse(base) for base in node.bases]
            fields = [each.target.id for each in node.body if isinstance(each, ast.AnnAssign)]
            found[f"{node.name}.fields"] = fields
            for method in (each for each in node.body if isinstance(each, ast.FunctionDef)):
                parameters = [each.arg for each in method.args.args]
                only_by_name = [f"{each.arg}=" for each in method.args.kwonlyargs]
                found.setdefault(f"{node.name}.{method.name}", [*parameters, *only_by_name])
    return found


def test_the_installed_version_has_the_recorded_signatures():
    pytest.importorskip("nvidia_resiliency_ext")
    version = importlib.metadata.version("nvidia-resiliency-ext")
    if version not in RECORDED:
        pytest.skip(f"no signatures of nvidia-resiliency-ext {version} are recorded")
    package = importlib.util.find_spec("nvidia_resiliency_ext")
    found = signatures(Path(package.submodule_search_locations[0]) / "inprocess")
    assert {name: found.get(name) for name in RECORDED[version]} == RECORDED[version]


@pytest.mark.parametrize("version", RECORDED)
def test_every_argument_and_field_exists_in_each_version(version):
    known = {name: {each.rstrip("=") for each in RECORDED[version][name]} for name in PASSED}
    assert [(name, used - known[name]) for name, used in PASSED.items() if used - known[name]] == []


def test_what_restarts_call_is_the_same_in_both_versions():
    changed = {name for name, found in RECORDED["0.3.0"].items() if RECORDED["0.7.0"][name] != found}
    # 0.7.0 has further arguments, and no `rank_filter`, which is deprecated in 0.3.0 and not passed
    assert changed == {"Wrapper.__init__"}
