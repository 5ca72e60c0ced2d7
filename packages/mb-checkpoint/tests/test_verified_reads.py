"""Verification of data files while they are read: each byte is read once, and damage is found in any of them."""

import pickle
import shutil
from pathlib import Path

import pytest
import rank_work
from torch.distributed.checkpoint.metadata import BytesStorageMetadata

from mb_checkpoint import diff_checkpoints

COMMON = ("common_state", "opt_param_scheduler", "content_metadata")
"""Objects that are read before all others."""
PLAIN = {"dist_opt": True}
SHAPES = {
    "distributed optimizer": (PLAIN, {}),
    "each rank reads what it needs": (PLAIN, {"fully_parallel_load": False}),
    "bf16, fully reshardable": ({"bf16": True, **PLAIN}, {"dist_ckpt_optim_fully_reshardable": True}),
    "Megatron-FSDP": ({"fsdp": "optim_grads_params"}, {"ckpt_format": "fsdp_dtensor"}),
}
FURTHER = {"bf16, fully reshardable"}
"""Shapes whose files are read by the code of another one."""


def positions(checkpoint: Path) -> dict[str, list[int]]:
    """Return positions in each data file: its ends, and within objects and tensors, at and behind their headers."""
    index = pickle.loads((checkpoint / ".metadata").read_bytes())
    pieces = [
        (piece, isinstance(index.state_dict_metadata[entry.fqn], BytesStorageMetadata))
        for entry, piece in index.storage_data.items()
    ]
    found = {}
    for file in sorted(checkpoint.glob("*.distcp")):
        own = [(piece, is_object) for piece, is_object in pieces if piece.relative_path == file.name]
        common = [
            piece
            for entry, piece in index.storage_data.items()
            if piece.relative_path == file.name and entry.fqn.startswith(COMMON)
        ]
        at = {file.stat().st_size - 1}
        for kind in (True, False):
            for piece in [piece for piece, is_object in own if is_object == kind][:1]:
                at |= {piece.offset, piece.offset + piece.length // 2}
        at |= {piece.offset + piece.length // 2 for piece in common[:2]}
        found[file.name] = sorted(at)
    return found


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.matrix] * (case in FURTHER)) for case in SHAPES]
)
def test_damage_anywhere_leads_to_the_previous_checkpoint_and_leaves_nothing_of_the_damaged_one(
    two_ranks, tmp_path, case
):
    shape, section = SHAPES[case]
    run, alone = tmp_path / "run", tmp_path / "alone"
    newest = Path(two_ranks.run(rank_work.two_steps, shape, *[{"save": str(run), **section}] * 2)[0])
    shutil.copytree(run / "iter_0000001", alone / "iter_0000001")
    expected = [
        (state, further)
        for state, _, _, further in two_ranks.run(
            rank_work.state_after_load, shape, {"load": str(alone / "iter_0000001"), **section}
        )
    ]
    for name, offsets in positions(newest).items():
        for offset in offsets:
            with (newest / name).open("r+b") as file:
                file.seek(offset)
                byte = file.read(1)
                file.seek(offset)
                file.write(bytes([byte[0] ^ 0x55]))
            found = two_ranks.run(rank_work.state_after_load, shape, {"load": str(run), **section})
            with (newest / name).open("r+b") as file:
                file.seek(offset)
                file.write(byte)
            skipped = [("iter_0000002", f"{name} differs from the manifest (checksum)")]
            assert [each[1:3] for each in found] == [(skipped, 1)] * 2, (name, offset)
            assert [(state, further) for state, _, _, further in found] == expected, (name, offset)
    ((_, skipped, step, _), _) = two_ranks.run(
        rank_work.state_after_load, shape, {"load": str(run), **section}
    )
    assert (skipped, step) == ([], 2)


@pytest.mark.parametrize("shape", [PLAIN, {}, {"fp16": True, **PLAIN}], ids=["distributed", "plain", "fp16"])
def test_an_optimizer_that_the_previous_checkpoint_lacks_starts_fresh(two_ranks, tmp_path, shape):
    run, alone = tmp_path / "run", tmp_path / "alone"
    sections = {"save": str(run), "save_optim": False}, {"save": str(run)}
    newest = Path(two_ranks.run(rank_work.two_steps, shape, *sections)[0])
    shutil.copytree(run / "iter_0000001", alone / "iter_0000001")
    expected = two_ranks.run(rank_work.state_after_load, shape, {"load": str(alone / "iter_0000001")})
    file = newest / "__1_0.distcp"
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    found = two_ranks.run(rank_work.state_after_load, shape, {"load": str(run)})
    assert [(state, further) for state, _, _, further in found] == [
        (state, further) for state, _, _, further in expected
    ]


@pytest.mark.parametrize(("saving", "loading"), [(2, 2), (4, 2), (2, 4), (1, 4)])
def test_any_number_of_ranks_reads_each_byte_once_and_bit_for_bit(fork_server, tmp_path, saving, loading):
    shape, full = {"dist_opt": True, "hidden": 256}, {"dist_ckpt_optim_fully_reshardable": True}
    one, other = {"save": str(tmp_path / "one"), **full}, {"save": str(tmp_path / "other"), **full}
    load = {"load": one["save"], **full}
    fork_server.ranks(saving).run(rank_work.first_part, shape, one, 1)
    stored = sum(file.stat().st_size for file in (tmp_path / "one/iter_0000001").iterdir())
    ranks = fork_server.ranks(loading)
    found = ranks.run(rank_work.bytes_read_by_load, shape, load)
    assert stored <= sum(count for count, _ in found) < 1.02 * stored
    ranks.run(rank_work.load_and_save, shape, load, other)
    difference = diff_checkpoints(one["save"], other["save"], values=True)
    assert (dict(difference.tensors), dict(difference.values)) == ({}, {})
