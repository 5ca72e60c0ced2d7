"""Names of Megatron-Bridge."""

import inspect
import json
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import mb_guard
import mb_host

mb_host.install()  # before megatron is imported
mb_guard.install(quiet=True)

from mb_config import DistributedDataParallelConfig, UnknownPrecisionError  # noqa: E402
from mb_config.mcore import MegatronDDPConfig  # noqa: E402
from mb_config.resolve.precision_table import REGISTERED  # noqa: E402
from mb_models import GPTModelConfig  # noqa: E402
from mb_schema.value_types import mismatches  # noqa: E402
from mb_trainer.bridge import answer, missing, names  # noqa: E402
from mb_trainer.bridge.models import GPTModelProvider  # noqa: E402
from mb_trainer.requests import read_request  # noqa: E402
from mb_trainer.run.preflight import resolve_and_check  # noqa: E402

API = json.loads(Path(__file__).with_name("bridge_api.json").read_text())
"""Names of Megatron-Bridge's documentation: module -> name -> parameters, fields, methods; and what differs here."""
SIZES = {"num_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "seq_length": 16}


UPSTREAM = {
    module: listed.split()
    for line in Path(__file__).with_name("bridge_names.txt").read_text().splitlines()
    for module, _, listed in [line.partition(":")]
}
"""Public names of Megatron-Bridge 0.6.2: module -> names; "." is the package."""


@pytest.mark.parametrize("path", [path for path in names() if path])
def test_every_name_exists(path):
    module = import_module(f"mb_trainer.bridge.{path}")
    assert dir(module) == sorted(names()[path])
    assert [name for name in names()[path] if getattr(module, name) is None] == []


def test_every_public_name_of_megatron_bridge_is_here_or_has_an_answer():
    paths = [
        (module, f"{module}.{name}".removeprefix(".."))
        for module, found in UPSTREAM.items()
        for name in found
    ]
    here = {f"{module}.{name}" if module else name for module, found in names().items() for name in found}
    lost = [path for _, path in paths if path not in here and path not in names() and answer(path) is None]
    assert len(paths) > 3000
    assert lost == []


def test_a_class_that_is_here_is_in_each_module_that_has_it():
    here = {name for found in names().values() for name in found if name[0].isupper()}
    lost = [
        f"{module}.{name}"
        for module, found in UPSTREAM.items()
        for name in here & {*found} - {*names().get("" if module == "." else module, ())}
    ]
    assert lost == []


def test_every_answer_belongs_to_a_name_and_is_a_sentence():
    paths = [f"{module}.{name}".removeprefix("..") for module, found in UPSTREAM.items() for name in found]
    paths += [module for module in UPSTREAM if module != "."]
    first = {
        next((pattern for pattern, _ in missing() if fnmatchcase(path, pattern)), None) for path in paths
    }
    unused = [pattern for pattern, _ in missing() if pattern not in first]
    assert unused == []
    assert [text for _, text in missing() if not text.endswith(".")] == []


def test_names_of_packages_in_the_answers_exist():
    pattern = re.compile(r"mb_[a-z]+(?:\.[A-Za-z_]\w*)+")
    paths = [path for _, text in missing() for path in pattern.findall(text)]
    assert paths
    for path in paths:
        package, *rest = path.split(".")
        found = import_module(package)
        for name in rest:
            found = getattr(found, name, None) or import_module(f"{found.__name__}.{name}")


def differences(name, found, wanted):
    """Yield what a class or function lacks: parameters in their order, fields, methods with their parameters."""
    callables = {name: (found, wanted.get("parameters", []))}
    for method, parameters in wanted.get("methods", {}).items():
        callables[f"{name}.{method}"] = getattr(found, method, None), ["self", *parameters]
    for path, (code, parameters) in callables.items():
        if parameters and (code is None or positional(code)[: len(parameters)] != parameters):
            yield path
    known = [*getattr(found, "__dataclass_fields__", {}), *dir(found)]
    yield from (f"{name}.{field}" for field in wanted.get("fields", {}) if field not in known)


def positional(code):
    """Return the names of the parameters that have a position."""
    parameters = inspect.signature(code).parameters.values()
    return [each.name for each in parameters if each.kind is not each.KEYWORD_ONLY]


@pytest.mark.parametrize("module", API["modules"])
def test_documented_names_and_parameters_are_those_of_megatron_bridge(module):
    wanted = API["modules"][module]
    assert sorted({*wanted} - {*names()[module]}) == []
    found = import_module(f"mb_trainer.bridge.{module}")
    differing = [
        f"{module}.{path}"
        for name in wanted
        for path in differences(name, getattr(found, name), wanted[name])
    ]
    assert differing == [path for path in API["different"] if path.startswith(f"{module}.")]


def test_what_differs_from_its_documentation_is_in_ours_with_the_reason():
    page = (Path(__file__).parents[1] / "docs" / "moving" / "megatron-bridge.md").read_text()
    for path, reason in API["different"].items():
        rows = [line for line in page.splitlines() if line.startswith("|") and reason in line]
        assert any(f"`{path.rpartition('.')[2]}" in row for row in rows), path


def test_a_missing_parameter_field_and_method_are_found():
    wanted = {"parameters": ["rate"], "fields": {"unit": []}, "methods": {"stop": ["now"]}}
    assert [*differences("Clock", type("Clock", (), {"__init__": lambda self, start: None}), wanted)] == [
        "Clock",
        "Clock.stop",
        "Clock.unit",
    ]


def test_a_page_is_read():
    page = """bridge.training.clock#

class bridge.training.clock.Clock(
rate: float,
unit: tuple[int, str] = (1, "s"),
)#

zone: str | None#

abstractmethod stop(now: bool = True) None#
_tick() None#
bridge.training.clock._hidden(a) None#
bridge.training.clock.start(at: int, *, late: bool) Clock#
bridge.training.clock.EPOCH: int#
"""
    read_page = runpy.run_path(str(Path(__file__).with_name("bridge_api.py")))["read_page"]
    assert read_page(page) == {
        "training.clock": {
            "Clock": {"parameters": ["rate", "unit"], "fields": {"zone": []}, "methods": {"stop": ["now"]}},
            "start": {"parameters": ["at", "late"]},
            "EPOCH": {},
        }
    }


def test_an_unknown_name_is_an_error():
    with pytest.raises(AttributeError, match=r"training.config.Nothing: not in this trainer"):
        import_module("mb_trainer.bridge.training.config").Nothing  # noqa: B018
    assert not hasattr(
        import_module("mb_trainer.bridge.training.config"), "megatron_mimo_runtime_config_update"
    )
    with pytest.raises(AttributeError, match=r"'mb_trainer.bridge' has no attribute 'Nothing'"):
        import_module("mb_trainer.bridge").Nothing  # noqa: B018
    with pytest.raises(ModuleNotFoundError, match=r"bridge.nothing: .* 0.6.2 has no such name either"):
        import_module("mb_trainer.bridge.nothing")


def test_a_recipe_loads_without_torch():
    code = (
        "import sys; from mb_trainer.bridge.models import GPTModelProvider; "
        "from mb_trainer.bridge.training.config import ConfigContainer; "
        "from mb_trainer.bridge.training.gpt_step import forward_step; "
        "from mb_trainer.bridge.training.pretrain import pretrain; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_values_of_torch_are_names_in_a_provider():
    provider = GPTModelProvider(**SIZES, activation_func=F.silu, pipeline_dtype=torch.bfloat16)
    provider.params_dtype = torch.float32
    values = (provider.activation_func, provider.pipeline_dtype, provider.params_dtype)
    assert values == ("silu", "bfloat16", "float32")
    assert isinstance(provider, GPTModelConfig)
    with pytest.raises(AttributeError, match="hidden_sizes: GPTModelProvider has no such field"):
        provider.hidden_sizes = 3


def test_a_provider_may_declare_fields_with_the_types_of_torch():
    @dataclass
    class SmallProvider(GPTModelProvider):
        activation_func: Callable = F.silu
        params_dtype: torch.dtype = torch.bfloat16
        gated_linear_unit: bool = True

    provider = SmallProvider(**SIZES)
    assert (provider.activation_func, provider.params_dtype) == ("silu", "bfloat16")
    assert [*mismatches(provider)] == []
    provider.gated_linear_unit = "both"
    assert [error.path for error in mismatches(provider)] == ["gated_linear_unit"]


def test_a_section_of_megatrons_own_class_is_taken():
    config = read_request(["gpt_tiny"]).config
    config.ddp = MegatronDDPConfig(
        grad_reduce_in_fp32=True, bucket_size=None, megatron_fsdp_main_params_dtype=torch.bfloat16
    )
    assert type(config.ddp) is DistributedDataParallelConfig
    assert {name: getattr(config.ddp, name) for name in config.ddp._given} == {
        "grad_reduce_in_fp32": True,
        "megatron_fsdp_main_params_dtype": "bfloat16",
    }
    assert [problem for problem in config.check(world_size=1) if problem.severity == "error"] == []


@pytest.fixture
def _forgotten():
    """Forget the module that a test imports, and its precision."""
    yield
    del REGISTERED["bf16_reduced"], sys.modules["mine_precision"]


@pytest.mark.usefixtures("_forgotten")
def test_a_precision_that_a_module_registers_is_named_in_a_file(tmp_path, monkeypatch):
    (tmp_path / "mine_precision.py").write_text(
        "from mb_trainer.bridge.training.mixed_precision import bf16_mixed, register\n\n\n"
        "@register\n"
        "def bf16_reduced():\n"
        "    config = bf16_mixed()\n"
        "    config.grad_reduce_in_fp32 = False\n"
        "    return config\n"
    )
    file = tmp_path / "run.yaml"
    file.write_text("base: gpt_tiny\nmixed_precision: bf16-reduced\n")
    with pytest.raises(UnknownPrecisionError, match="unknown recipe 'bf16-reduced'"):
        read_request([str(file)])
    monkeypatch.syspath_prepend(str(tmp_path))
    import_module("mine_precision")
    request = read_request([str(file)])
    resolve_and_check(request.config, world_size=1, provenance=request.provenance)
    assert (request.config.model.bf16, request.config.ddp.grad_reduce_in_fp32) == (True, False)


@pytest.mark.parametrize(
    ("statement", "advice"),
    [
        ("import mb_trainer.bridge.models.qwen_vl", "MimoModelConfig"),
        ("from mb_trainer.bridge.models import LlamaBridge", "AutoBridge converts weights"),
        ("from mb_trainer.bridge.training.utils.omegaconf_utils import x", "mb_config.apply_overrides"),
        ("import mb_trainer.bridge.perf_recipes.llama", "`perf: h100`"),
        ("from mb_trainer.bridge.utils.common_utils import warn_rank_0", "mb_launch.read_world"),
    ],
)
def test_a_name_that_is_missing_here_names_its_replacement(statement, advice):
    with pytest.raises(ImportError, match="not in this trainer") as caught:
        exec(statement)
    assert advice in str(caught.value)


def test_modules_that_exist_are_imported_and_other_names_are_unknown():
    from mb_trainer.bridge import recipes, training

    assert (recipes.__name__, training.__name__) == (
        "mb_trainer.bridge.recipes",
        "mb_trainer.bridge.training",
    )
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        exec("from mb_trainer.bridge import nothing")
