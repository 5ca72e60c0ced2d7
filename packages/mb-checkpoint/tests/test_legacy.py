"""Megatron-LM's legacy layout `torch`: a run resumes bit for bit, and what does not fit is named."""

import re
from argparse import Namespace

import pytest
import rank_work

LAYOUTS = {
    "one process, bf16": {"bf16": True},
    "DP2, distributed optimizer, bf16": {"dist_opt": True, "bf16": True},
    "PP2, two virtual stages": {"pp": 2, "vpp": 2, "layers": 4},
    "EP2": {"ep": 2, "experts": 4},
}


def without_counters(fingerprint):
    return {name: value for name, value in fingerprint.items() if name != "counters"}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_resumed_run_equals_a_straight_one_bit_for_bit(layout, request, tmp_path):
    ranks = request.getfixturevalue("one_rank" if layout.startswith("one") else "two_ranks")
    shape, folder = LAYOUTS[layout], str(tmp_path)
    straight = ranks.run(rank_work.train_uninterrupted, shape, 4)
    before = ranks.run(rank_work.legacy_first_part, shape, folder, 2)
    after = ranks.run(rank_work.second_part, shape, {"load": folder}, 2)
    assert [first + second[0] for first, second in zip(before, after, strict=True)] == [
        losses for losses, _ in straight
    ]
    assert [without_counters(fingerprint) for _, fingerprint, _ in after] == [
        without_counters(fingerprint) for _, fingerprint in straight
    ]
    assert after[0][1]["counters"]["consumed_train_samples"] == 32
    assert after[0][2].path == tmp_path / "iter_0000002"


@pytest.fixture(scope="module")
def folder(fork_server, tmp_path_factory):
    """Return the folder of a run of one process."""
    path = tmp_path_factory.mktemp("legacy")
    fork_server.ranks(1).run(rank_work.legacy_first_part, {}, str(path), 1)
    return path


def test_weights_and_masters_are_read_without_the_optimizer(folder, one_rank):
    section = {"pretrained_checkpoint": str(folder)}
    (weights,) = one_rank.run(rank_work.second_part, {"bf16": True}, section, 1)
    (other,) = one_rank.run(rank_work.second_part, {"bf16": True, "seed": 5}, section, 1)
    assert weights[2].source == "weights"
    assert weights[0] == pytest.approx(other[0], rel=0.05)  # dropout differs


@pytest.mark.parametrize(
    ("ranks", "shape", "section", "problem"),
    [
        (2, {"tp": 2}, {}, "has files of mp_rank_00, and this run needs those of mp_rank_01, too"),
        (1, {"dist_opt": True}, {}, "has no distrib_optim.pt.*ddp.use_distributed_optimizer=false"),
        (1, {"hidden": 64}, {}, "made by a model of another shape"),
        (1, {"layers": 3}, {}, "decoder.layers.2.*absent"),
    ],
)
def test_what_does_not_fit_is_named(folder, fork_server, ranks, shape, section, problem):
    found = fork_server.ranks(ranks).run(rank_work.legacy_problem, shape, {"load": str(folder), **section})
    assert all(re.search(problem, text) for text in found), found


SEPARATE = ["0.input_layernorm.weight", "0.self_attention.linear_qkv.weight"]
FUSED = ["0.self_attention.linear_qkv.weight", "0.self_attention.linear_qkv.layer_norm_weight"]


@pytest.mark.parametrize(
    ("stored", "own", "names", "ordered"),
    [
        (FUSED, SEPARATE, SEPARATE[::-1], False),
        (SEPARATE, FUSED, FUSED[::-1], False),
        ([*FUSED, "0.linear._extra_state"], FUSED, FUSED, True),
    ],
)
def test_norms_that_layers_fuse_are_renamed_and_then_the_optimizer_has_another_order(
    one_rank, stored, own, names, ordered
):
    assert one_rank.run(rank_work.legacy_names, stored, own) == [(names, ordered)]


def test_a_layout_with_other_sizes_is_rejected(tmp_path, fork_server):
    fork_server.ranks(2).run(rank_work.legacy_first_part, {"tp": 2}, str(tmp_path), 1)
    (found,) = fork_server.ranks(1).run(rank_work.legacy_problem, {}, {"load": str(tmp_path)})
    assert "was written with {'tensor_model_parallel_size': 2" in found
    assert "--ckpt-convert-format torch_dist" in found


class Dangerous:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return type(self.path).touch, (self.path,)


def test_code_in_the_file_is_only_executed_where_its_folder_is_trusted(tmp_path, fork_server):
    torch = pytest.importorskip("torch")
    ranks, section = fork_server.ranks(1), {"load": str(tmp_path)}
    ranks.run(rank_work.legacy_first_part, {}, str(tmp_path), 1)
    file = tmp_path / "iter_0000001" / "mp_rank_00" / "model_optim_rng.pt"
    state = torch.load(file, weights_only=False)
    torch.save({**state, "args": Namespace(**vars(state["args"]), more=Dangerous(tmp_path / "made"))}, file)
    (found,) = ranks.run(rank_work.legacy_problem, {}, section)
    assert "checkpoint.trust=true" in found
    assert not (tmp_path / "made").exists()
    assert ranks.run(rank_work.legacy_problem, {}, {**section, "trust": True}) == [None]
    assert (tmp_path / "made").exists()
