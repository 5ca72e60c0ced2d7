"""Another parallel layout reads a checkpoint exactly: its own save is equal, tensor by tensor, bit for bit."""

from pathlib import Path

import pytest
import rank_work
import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys

from mb_checkpoint import diff_checkpoints

FULL = {"dist_ckpt_optim_fully_reshardable": True}
DENSE = {"layers": 4, "dist_opt": True}
EXPERTS = {"experts": 4}
MOE = {**EXPERTS, "dist_opt": True}
HALF = {**EXPERTS, "bf16": True}
LAYOUTS = {
    "TP2 to TP1": ({**DENSE, "tp": 2}, DENSE),
    "TP2 to PP2 with two virtual stages": ({**DENSE, "tp": 2}, {**DENSE, "pp": 2, "vpp": 2}),
    "TP2 x PP2 to TP4": ({**DENSE, "tp": 2, "pp": 2}, {**DENSE, "tp": 4}),
    "PP4 to TP2": ({**DENSE, "pp": 4}, {**DENSE, "tp": 2}),
    "EP2 to EP1": ({**MOE, "ep": 2}, MOE),
    "EP1 to EP2": (MOE, {**MOE, "ep": 2}),
    "EP2 to EP1, one optimizer state in each replica": ({**HALF, "ep": 2}, HALF),
    "EP1 to EP2, one optimizer state in each replica": (HALF, {**HALF, "ep": 2}),
    "EP2 x TP2 to EP4": ({**MOE, "ep": 2, "tp": 2}, {**MOE, "ep": 4}),
}


def same(one, other):
    """Return whether two checkpoints hold the same weights and optimizer state; the random states may differ."""
    found = diff_checkpoints(one, other, values=True)
    return dict(found.tensors), dict(found.values), dict(found.train_state)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_four_ranks_read_what_four_ranks_of_another_layout_wrote(four_ranks, tmp_path, layout):
    before, after = LAYOUTS[layout]
    one, other = str(tmp_path / "one"), str(tmp_path / "other")
    four_ranks.run(rank_work.train_and_save, before, {"save": one, **FULL}, 1)
    four_ranks.run(rank_work.load_and_save, after, {"load": one, **FULL}, {"save": other, **FULL})
    assert same(one, other) == ({}, {}, {})


@pytest.mark.parametrize("shape", [EXPERTS, HALF, MOE], ids=["float32", "bfloat16", "distributed"])
@pytest.mark.parametrize(("stored", "here"), [(2, 1), (1, 2)])
def test_adam_counts_on_if_experts_are_distributed_otherwise(two_ranks, tmp_path, shape, stored, here):
    folder = str(tmp_path)
    two_ranks.run(rank_work.train_and_save, {**shape, "ep": stored}, {"save": folder, **FULL}, 3)
    loaded = two_ranks.run(rank_work.steps_after_load, {**shape, "ep": here}, {"load": folder, **FULL})
    assert loaded == [{3}, {3}]


SHARDED = {"dist_opt": True}
OPTIMIZERS = {
    "float32, distributed": ({}, SHARDED),
    "float32, TP2": ({}, {**SHARDED, "tp": 2}),
    "float32, PP2": ({}, {**SHARDED, "pp": 2}),
    "bfloat16": ({"bf16": True}, {**SHARDED, "bf16": True}),
    "float16": ({"fp16": True}, {**SHARDED, "fp16": True}),
    "experts": (EXPERTS, {**MOE, "ep": 2}),
    "experts in bfloat16": ({**HALF, "ep": 2}, {**HALF, **SHARDED}),
}
"""Name -> shapes of a run without and of one with the distributed optimizer."""


@pytest.mark.parametrize("direction", [1, -1], ids=["to distributed", "from distributed"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_run_turns_the_distributed_optimizer_on_or_off(two_ranks, tmp_path, name, direction):
    before, after = OPTIMIZERS[name][::direction]
    first, second, third, again = ({"load": str(tmp_path / part), **FULL} for part in "abcd")
    steps = 40 if "fp16" in before else 3  # the first steps overflow until the loss scale is small enough

    two_ranks.run(rank_work.train_and_save, before, saved_in(first), steps)
    counted = two_ranks.run(rank_work.steps_after_load, before, first)
    assert two_ranks.run(rank_work.steps_after_load, after, first) == counted != [{0}, {0}]
    two_ranks.run(rank_work.load_and_save, after, first, saved_in(second))
    two_ranks.run(rank_work.load_and_save, before, second, saved_in(third))
    assert same(first["load"], third["load"]) == ({}, {}, {})
    if before.keys() ^ after.keys() == {"dist_opt"}:  # the same random states
        continued = two_ranks.run(rank_work.moved_part, after, first | saved_in(again), 2)
        expected = two_ranks.run(rank_work.moved_part, before, first | saved_in(again), 2)
        assert [part[0] for part in continued] == [pytest.approx(part[0], abs=1e-6) for part in expected]
        assert [part[2].notes for part in continued] == [(), ()]


def test_a_distributed_optimizer_starts_fresh_where_the_other_has_not_made_an_update(two_ranks, tmp_path):
    folder = {"load": str(tmp_path), **FULL}
    two_ranks.run(rank_work.train_and_save, {"fp16": True}, saved_in(folder), 2)  # both steps overflow
    loaded = two_ranks.run(rank_work.second_part, {"fp16": True, **SHARDED}, folder, 2)
    expected = two_ranks.run(rank_work.second_part, {"fp16": True}, folder, 2)
    assert [part[0] for part in loaded] == [part[0] for part in expected]
    assert [part[2].notes for part in loaded] == [
        ("optimizer: saved before its first update; it starts fresh",)
    ] * 2


def saved_in(section):
    """Return the section that saves where another one loads."""
    return {"save" if key == "load" else key: value for key, value in section.items()}


def test_a_form_for_the_distributed_optimizer_alone_is_an_error_without_it(two_ranks, tmp_path):
    two_ranks.run(rank_work.train_and_save, SHARDED, {"save": str(tmp_path)}, 1)
    kind, text, _ = two_ranks.run(
        rank_work.error_of, rank_work.load_and_save, {}, {"load": str(tmp_path)}, {}
    )[0]
    assert kind == "CheckpointLayoutError"
    assert "only the distributed optimizer can read the form dp_reshardable" in text


@pytest.mark.parametrize("dist_opt", [False, True], ids=["half precision", "distributed"])
def test_main_parameters_are_the_weights_of_a_run_in_float32(two_ranks, tmp_path, dist_opt):
    there, here = str(tmp_path / "float32"), str(tmp_path / "bfloat16")
    two_ranks.run(rank_work.train_and_save, {}, {"save": there}, 3)
    shape = {"bf16": True, "dist_opt": dist_opt}
    two_ranks.run(rank_work.load_and_save, shape, {"load": there}, {"save": here, **FULL})
    stored, weights = tensors_of(here, step=3), tensors_of(there, step=3)
    main = "optimizer.state.param." if dist_opt else "optimizer.state.fp32_param."
    names = [name for name in weights if not name.startswith("optimizer.")]
    assert names
    for name in names:
        assert torch.equal(stored[main + name], weights[name]), name


@pytest.mark.parametrize("dist_opt", [False, True], ids=["half precision", "distributed"])
def test_weights_of_a_run_in_float32_are_the_main_parameters(two_ranks, tmp_path, dist_opt):
    there, here = str(tmp_path / "bfloat16"), str(tmp_path / "float32")
    shape = {"bf16": True, "dist_opt": dist_opt}
    two_ranks.run(rank_work.train_and_save, shape, {"save": there, **FULL}, 3)
    two_ranks.run(rank_work.load_and_save, {}, {"load": there}, {"save": here})
    stored, weights = tensors_of(there, step=3), tensors_of(here, step=3)
    main = "optimizer.state.param." if dist_opt else "optimizer.state.fp32_param."
    names = [name for name in weights if not name.startswith("optimizer.")]
    assert all(torch.equal(weights[name], stored[main + name]) for name in names)
    assert any(not torch.equal(weights[name], stored[name].float()) for name in names)


def test_one_rank_reads_what_two_data_parallel_ranks_wrote_in_many_buckets(one_rank, two_ranks, tmp_path):
    shape = {"dist_opt": True, "bf16": True, "bucket_size": 3000}
    folder = str(tmp_path / "run")
    two_ranks.run(rank_work.train_and_save, shape, {"save": folder}, 2)
    for ranks, report in ((two_ranks, "from_two"), (one_rank, "from_one")):
        ranks.run(rank_work.load_weights_and_states, shape, {"load": folder}, str(tmp_path / report))
    assert (tmp_path / "from_one").read_text() == (tmp_path / "from_two").read_text()


def test_buckets_do_not_appear_in_the_fully_reshardable_form(two_ranks, tmp_path):
    shape, one, many = {"dist_opt": True}, str(tmp_path / "one"), str(tmp_path / "many")
    two_ranks.run(rank_work.train_and_save, shape, {"save": one, **FULL}, 1)
    two_ranks.run(rank_work.train_and_save, {**shape, "bucket_size": 3000}, {"save": many, **FULL}, 1)
    assert same(one, many) == ({}, {}, {})


def tensors_of(folder, words=("",), *, step=1):
    """Return the tensors of the checkpoint at a step whose names contain one of the words, read by torch itself."""
    found = _load_state_dict_from_keys(
        storage_reader=FileSystemReader(str(Path(folder) / f"iter_{step:07d}")), process_group=None
    )
    flat = {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}
    return {name: value for name, value in flat.items() if any(word in name for word in words)}


@pytest.mark.parametrize("rows", [(64, 48), (48, 64)], ids=["fewer rows", "more rows"])
@pytest.mark.parametrize("dist_opt", [False, True], ids=["optimizer", "distributed optimizer"])
def test_a_vocabulary_that_is_padded_for_another_tensor_parallel_size_is_read(
    two_ranks, tmp_path, rows, dist_opt
):
    """Megatron loads these tensors: common rows as stored, further ones as zeros."""
    there, here = rows
    one, other = str(tmp_path / "one"), str(tmp_path / "other")
    shape = {"dist_opt": dist_opt}
    two_ranks.run(rank_work.train_and_save, {**shape, "tp": 2, "vocab": there}, {"save": one, **FULL}, 1)
    two_ranks.run(
        rank_work.load_and_save, {**shape, "vocab": here}, {"load": one, **FULL}, {"save": other, **FULL}
    )
    names = ["word_embeddings", "output_layer"]
    stored, loaded = tensors_of(one, names), tensors_of(other, names)
    assert len(stored) == (8 if dist_opt else 6)  # weights, two moments of each; distributed: main weights
    assert stored.keys() == loaded.keys()
    common = min(rows)
    for name, value in loaded.items():
        assert value.shape == (here, 32)
        assert torch.equal(value[:common], stored[name][:common])
        assert not value[common:].any()


@pytest.mark.parametrize(
    ("stored", "here", "padding", "accepted"),
    [
        ({"vocab": 64, "tp": 2}, {"vocab": 318}, "128 x 2 by default", True),
        ({"vocab": 64, "tp": 2}, {"vocab": 320}, "128 x 2 by default", False),
        ({"vocab": 64}, {"vocab": 190, "tp": 2}, "128 x 2 by default", True),
        ({"vocab": 64}, {"vocab": 192}, "128 x 1 by default", False),
        ({"vocab": 64, "tp": 2}, {"vocab": 94, "vocab_divisor": 16}, "16 x 2", True),
        ({"vocab": 64, "tp": 2}, {"vocab": 32, "vocab_divisor": 16}, "16 x 2", False),
    ],
)
def test_another_vocabulary_is_refused_and_not_filled_up(
    two_ranks, tmp_path, stored, here, padding, accepted
):
    """Megatron's `vocab_size_with_padding` adds fewer rows than the divisor x TP, so two results differ by fewer."""
    folder = {"save": str(tmp_path / "run")}
    two_ranks.run(rank_work.train_and_save, stored, folder, 1)
    work = rank_work.error_of, rank_work.load_only, here, {"load": folder["save"]}, {}
    kinds = {kind for kind, *_ in two_ranks.run(*work)}
    assert kinds == {"no error" if accepted else "CheckpointShapeError"}, padding
