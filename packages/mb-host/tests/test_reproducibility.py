"""Conditions of arithmetic on the CPU, and reasons for irreproducibility."""

from dataclasses import replace

import pytest
import torch

from mb_host.cpu.reproducibility import (
    irreproducibility_reasons,
    make_index_add_deterministic,
    mkl_version,
    processor_name,
    read_arithmetic,
)


def test_conditions_name_the_variable_that_sets_the_threads():
    assert read_arithmetic({}).threads_requested == "not set"
    requested = {"OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "2"}
    assert read_arithmetic(requested).threads_requested == "MKL_NUM_THREADS=2, OMP_NUM_THREADS=3"
    assert read_arithmetic({}).as_text()["MKL"] == mkl_version()


def test_a_variable_number_of_threads_is_a_reason():
    fixed = replace(read_arithmetic({}), threads=4, team=4, dynamic=False)
    assert irreproducibility_reasons(fixed) == ()
    assert irreproducibility_reasons(replace(fixed, team=None)) == ()
    dynamic, limited = irreproducibility_reasons(replace(fixed, dynamic=True, team=3))
    assert dynamic.startswith("OMP_DYNAMIC: OpenMP chooses the number of threads by the load")
    assert limited.startswith("OMP_THREAD_LIMIT: a parallel region received 3 of 4 threads")


def test_the_processor_name_falls_back_to_the_architecture(tmp_path):
    (tmp_path / "cpuinfo").write_text("processor : 0\nmodel name : Some CPU @ 2 GHz\n")
    (tmp_path / "other").write_text("Features : fp\n")
    assert processor_name(tmp_path / "cpuinfo") == "Some CPU @ 2 GHz"
    assert processor_name(tmp_path / "missing") == processor_name(tmp_path / "other")


@pytest.mark.parametrize(
    ("gpu", "threads", "mode"), [(False, 1, "default"), (False, 2, "warn"), (True, 2, "default")]
)
def test_index_additions_are_deterministic_on_several_threads_of_the_cpu(monkeypatch, gpu, threads, mode):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    try:
        make_index_add_deterministic()
        assert torch.get_deterministic_debug_mode() == {"default": 0, "warn": 1}[mode]
    finally:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = True
