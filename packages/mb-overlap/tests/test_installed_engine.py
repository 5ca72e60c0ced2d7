"""Facts about `initialize_ub` against the installed Transformer Engine; skipped if it is not installed.

Its source is executed with stubs for the compiled kernels, so that neither a GPU nor the extension is needed.
"""

import ast
import enum
import os
import socket
import warnings
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional, Union

import pytest

from mb_overlap import PRESETS, initialize_ub_arguments
from mb_overlap.transformer_engine.te_versions import (
    GEMMS,
    METHODS,
    PARAMETERS,
    REDUCE_SCATTERS,
    SETTINGS,
    parse_version,
)

SPEC = find_spec("transformer_engine")
if SPEC is None or not SPEC.submodule_search_locations:
    pytest.skip("Transformer Engine is not installed", allow_module_level=True)
try:
    VERSION = version("transformer-engine")
except PackageNotFoundError:
    pytest.skip("the version of Transformer Engine is not known", allow_module_level=True)

SOURCE = Path(SPEC.submodule_search_locations[0]) / "pytorch" / "module" / "base.py"
RELEASE = parse_version(VERSION)


class Anything:
    """Stub of a workspace: every attribute and every call returns the object itself."""

    def __getattr__(self, name):
        return self

    def __call__(self, *args, **kwargs):
        return self

    def __eq__(self, other):
        return False

    __hash__ = None


def kernels(made):
    """Return a stub of the compiled extension that records each created buffer in `made`."""

    def make(*args, **kwargs):
        made.append(kwargs)
        return object()

    return SimpleNamespace(
        device_supports_multicast=lambda: True,
        ubuf_built_with_mpi=lambda: False,
        CommOverlapHelper=lambda *_: None,
        UbufBootstrapCallbacks=lambda *_: None,
        get_stream_priority_range=lambda: (0, -5),
        CommOverlapType=SimpleNamespace(RS="RS", AG="AG"),
        CommOverlap=make,
        CommOverlapP2P=make,
        UbufCommOverlap=make,
        UbufP2PCommOverlap=make,
    )


def torch_stub():
    group = SimpleNamespace(
        Backend=str,
        is_initialized=lambda: True,
        is_mpi_available=lambda: False,
        is_gloo_available=lambda: True,
        is_backend_available=lambda _: True,
        new_group=lambda **_: 0,
        get_rank=lambda _: 1,
        get_world_size=lambda _: 4,
        get_process_group_ranks=lambda _: [0],
        new_subgroups_by_enumeration=lambda *_, **__: (0, 0),
        all_gather_object=lambda out, value, _: out.__setitem__(slice(None), [value] * len(out)),
    )
    return SimpleNamespace(
        distributed=group, uint8="uint8", bfloat16="bfloat16", dtype=str, device=str, Tensor=object,
        empty=lambda *_, **__: Anything(),
    )  # fmt: skip


def definition():
    tree = ast.parse_version(SOURCE.read_text())
    return next(node for node in tree.body if getattr(node, "name", None) == "initialize_ub"), tree


def initialize(arguments):
    """Run the installed `initialize_ub`, and return the names of the created buffers."""
    _, tree = definition()
    wanted = ("initialize_ub", "UserBufferQuantizationMode")
    body = [node for node in tree.body if getattr(node, "name", None) in wanted]
    space = {
        "tex": kernels([]), "torch": torch_stub(), "os": os, "socket": socket, "warnings": warnings,
        "Enum": enum.Enum, "Any": Any, "List": list, "Optional": Optional, "Union": Union,
        "get_workspace": Anything(), "get_cublas_workspace_size_bytes": lambda: 1,
        "_ub_communicators": None, "_cublas_workspace": None, "_NUM_MAX_UB_STREAMS": 3,
        "_MIN_STREAM_PRIORITY": None, "_MAX_STREAM_PRIORITY": None, "layers_atomic_ring_exchange": [],
    }  # fmt: skip
    exec(compile(ast.Module(body, []), str(SOURCE), "exec"), space)
    if "quantization_modes" in arguments:
        modes = space["UserBufferQuantizationMode"]
        arguments = arguments | {
            "quantization_modes": [modes[name] for name in arguments["quantization_modes"]]
        }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        space["initialize_ub"](**arguments)
    return {name if isinstance(name, str) else name[0] for name in space["_ub_communicators"]}


def arguments_for(preset, modes):
    return initialize_ub_arguments(
        seq_length=preset.seq_length, micro_batch_size=preset.micro_batch_size, hidden_size=preset.hidden_size,
        tp=preset.tp, cp=preset.cp, release=VERSION, settings=preset.build(), quantization_modes=modes,
    )  # fmt: skip


def known(facts):
    return {name for name, since in facts.items() if since <= RELEASE}


def test_parameters_match_the_source():
    function, _ = definition()
    assert {argument.arg for argument in function.args.args} == known(PARAMETERS)


def test_settings_match_the_source():
    function, _ = definition()
    adding = next(node for node in ast.walk(function) if getattr(node, "name", None) == "add_ub")
    taken = {argument.arg for argument in adding.args.args} - {"name", "quantization_mode"}
    assert taken == {name for name, (since, _) in SETTINGS.items() if since <= RELEASE}


def test_methods_and_reduce_scatters_match_the_source():
    function, _ = definition()
    tables = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id in ("methods", "layers_reduce_scatter_overlap")
    }
    assert set(tables["methods"]) == known(METHODS)
    assert tuple(tables["layers_reduce_scatter_overlap"]) == REDUCE_SCATTERS


def test_buffers_are_created_for_the_known_gemms():
    arguments = initialize_ub_arguments(
        seq_length=8192, micro_batch_size=1, hidden_size=4096, tp=4, release=VERSION
    )
    assert initialize(arguments) == known(GEMMS)


@pytest.mark.parametrize("modes", [["NONE"], ["FP8"], ["FP8", "NONE"]], ids="+".join)
@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_every_preset_is_accepted(preset, modes):
    assert initialize(arguments_for(preset, modes)) == known(GEMMS)
