"""Modules of CUDA graphs as text, list or enum members."""

from enum import Enum

import pytest

from mb_schema.cuda_graphs import captures_full_iteration, module_names


class Module(Enum):
    attn = 1


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (None, set()),
        ("", set()),
        ("full", set()),
        ("attn, mlp", {"attn", "mlp"}),
        (["attn", Module.attn, "mlp"], {"attn", "mlp"}),
        (Module.attn, {"attn"}),
        ("CudaGraphScope.full_iteration", {"full_iteration"}),
    ],
)
def test_names_of_modules(value, names):
    assert module_names(value) == names


def test_a_full_iteration_under_its_new_and_its_legacy_name():
    assert captures_full_iteration("full_iteration", None, None)
    assert captures_full_iteration("local", None, ["full_iteration"])
    assert not captures_full_iteration("transformer_engine", ["full_iteration"], None)
