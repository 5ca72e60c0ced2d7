"""Products of linear layers with oneDNN, and reuse of the memory of large tensors."""

import ctypes
import resource

import pytest
import torch

from mb_host.cpu.matrix_products import (
    MIN_OPERATIONS,
    OneDnnProducts,
    is_onednn_faster,
    keep_large_blocks,
    matrix_product,
)

onednn_only = pytest.mark.skipif(
    not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="this build of torch has no oneDNN"
)
LARGE = (256, 192, 128)
"""Rows, inner dimension and columns of a product that is large enough."""


def operands(rows, inner, columns, *, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=generator) for size in ((rows, inner), (inner, columns))]


def transposed(matrix):
    """Return the same values in the other order in memory."""
    return matrix.t().contiguous().t()


@onednn_only
@pytest.mark.parametrize("left_order", [lambda matrix: matrix, transposed])
@pytest.mark.parametrize("right_order", [lambda matrix: matrix, transposed])
def test_a_large_product_is_exact_to_rounding(left_order, right_order):
    left, right = operands(*LARGE)
    found = matrix_product(left_order(left), right_order(right))
    assert (found - left.double() @ right.double()).abs().max() < 1e-3 * LARGE[1] ** 0.5 / 100
    assert found.is_contiguous()


@onednn_only
def test_leading_dimensions_are_kept_and_the_result_is_no_view():
    left, right = operands(*LARGE)
    found = matrix_product(left.view(64, 4, -1), right)
    assert (found.shape, found._is_view()) == ((64, 4, LARGE[2]), False)
    assert torch.equal(found.view(LARGE[0], -1), matrix_product(left, right))


@pytest.mark.parametrize("rows", [1, 7])
def test_small_products_are_those_of_torch(rows):
    left, right = operands(rows, 64, 64)
    assert left.numel() * right.size(1) < MIN_OPERATIONS
    assert torch.equal(matrix_product(left, right), left @ right)


def test_other_types_and_autocast_are_those_of_torch():
    left, right = operands(*LARGE)
    assert torch.equal(matrix_product(left.double(), right.double()), left.double() @ right.double())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert matrix_product(left, right).dtype == torch.bfloat16


@onednn_only
def test_the_context_replaces_products_only():
    left, right = operands(*LARGE)
    out = torch.empty(LARGE[0], LARGE[2])
    with OneDnnProducts():
        products = torch.matmul(left, right), left.matmul(right)
        assert torch.matmul(left, right, out=out) is out
        total = torch.add(left, left)
    assert all(torch.equal(each, matrix_product(left, right)) for each in products)
    assert torch.equal(out, torch.matmul(left, right))
    assert torch.equal(total, left + left)


def test_processors_of_intel_and_unknown_ones_use_mkl(tmp_path):
    found = {}
    for name in ("GenuineIntel", "AuthenticAMD"):
        path = tmp_path / name
        path.write_text(f"processor : 0\nvendor_id : {name}\n")
        found[name] = is_onednn_faster(str(path))
    assert found["GenuineIntel"] is is_onednn_faster(str(tmp_path / "missing")) is False
    assert found["AuthenticAMD"] is (
        torch.backends.cpu.get_cpu_capability() == "AVX512" and torch.backends.mkl.is_available()
    )


def test_the_memory_of_a_large_tensor_is_used_again():
    if not keep_large_blocks():
        pytest.skip("not the GNU C library")
    faults = []
    for _ in range(8):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.ones(9 << 20)
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    assert min(faults) < 100  # always 9,216 pages if the memory is returned to the system


def test_other_allocators_are_left_alone(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert keep_large_blocks() is False
