"""Names of Megatron-Bridge."""

import inspect
import json
import runpy
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import mb_guard
import mb_host

mb_host.install()  # before megatron is imported
mb_guard.install(quiet=True)

from mb_config import UnknownPrecisionError  # noqa: E402
from mb_config.mcore import MegatronDDPConfig  # noqa: E402
from mb_config.resolve.precision_table import REGISTERED  # noqa: E402
from mb_models import GPTModelConfig  # noqa: E402
from mb_schema.value_types import mismatches  # noqa: E402
from mb_trainer.bridge._names import NAMES  # noqa: E402
from mb_trainer.bridge.models import GPTModelProvider  # noqa: E402
from mb_trainer.requests import read_request  # noqa: E402
from mb_trainer.run.preflight import resolve_and_check  # noqa: E402

API = json.loads(Path(__file__).with_name("bridge_api.json").read_text())
"""Names of Megatron-Bridge's documentation: module -> name -> parameters, fields, methods; and what differs here."""
SIZES = {"num_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "seq_length": 16}


@pytest.mark.parametrize("path", NAMES)
def test_every_name_exists(path):
    module = import_module(f"mb_trainer.bridge.{path}")
    assert dir(module) == sorted(NAMES[path])
    assert [name for name in NAMES[path] if getattr(module, name) is None] == []


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
    names = API["modules"][module]
    assert sorted({*names} - {*NAMES[module]}) == []
    found = import_module(f"mb_trainer.bridge.{module}")
    differing = [
        f"{module}.{path}" for name in names for path in differences(name, getattr(found, name), names[name])
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


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"training.config' has no attribute 'Nothing'"):
        import_module("mb_trainer.bridge.training.config").Nothing  # noqa: B018


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


def test_a_section_of_megatrons_own_class_is_one_error_with_the_class_to_import():
    config = read_request(["gpt_tiny"]).config
    config.ddp = MegatronDDPConfig()
    (problem,) = [problem for problem in config.check(world_size=1) if problem.severity == "error"]
    assert (problem.id, problem.fields) == ("TY01", ("ddp",))
    assert (
        "expected DistributedDataParallelConfig of mb_config or mb_trainer.bridge, not <class 'megatron."
        in (problem.message)
    )


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
        ("from mb_trainer.bridge import AutoBridge", "mb import-hf and mb export-hf"),
        (
            "from mb_trainer.bridge.recipes.llama import llama32_1b_pretrain_config",
            "`mb recipes` lists the recipes",
        ),
        ("import mb_trainer.bridge.models.llama", "sections of mb_models"),
        ("import mb_trainer.bridge.data.builders", "sections of mb_data"),
        ("import mb_trainer.bridge.utils.common_utils", "The page Megatron-Bridge of the documentation"),
    ],
)
def test_a_name_that_is_missing_here_names_its_replacement(statement, advice):
    with pytest.raises(ImportError, match="Megatron-Bridge has it, and this trainer has not") as caught:
        exec(statement)
    assert advice in str(caught.value)


def test_modules_that_exist_are_imported_and_other_names_are_unknown():
    from mb_trainer.bridge import recipes, training

    assert (recipes.__name__, training.__name__) == (
        "mb_trainer.bridge.recipes",
        "mb_trainer.bridge.training",
    )
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        from mb_trainer.bridge import nothing  # noqa: F401
