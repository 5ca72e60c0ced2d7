"""Files that are replaced as a whole."""

import os
from pathlib import Path

import pytest

from mb_schema.files import replaced, write_atomically


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path):
    write_atomically(tmp_path / "a", "old")
    write_atomically(tmp_path / "a", "ü", durable=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": "ü".encode()}


def test_a_failure_leaves_the_old_file_alone(tmp_path):
    write_atomically(tmp_path / "a", "old")
    with pytest.raises(TypeError), replaced(tmp_path / "a") as part:
        part.write_bytes("not bytes")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "old"}


def test_a_file_that_cannot_be_renamed_is_removed(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(OSError, match="a"):
        write_atomically(tmp_path / "a", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_two_writers_do_not_share_a_file(tmp_path):
    with replaced(tmp_path / "a") as first, replaced(tmp_path / "a") as second:
        first.write_text("1")
        second.write_text("2")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["1"]


def test_others_may_read_what_the_umask_allows(tmp_path):
    write_atomically(tmp_path / "a", "text")
    Path(tmp_path, "b").touch()
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_a_durable_file_is_on_the_disk_before_its_name_and_the_name_before_the_return(tmp_path, monkeypatch):
    order, rename = [], Path.replace
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: order.append(Path(f"/proc/self/fd/{descriptor}").readlink())
    )
    monkeypatch.setattr(
        Path, "replace", lambda part, target: (order.append("rename"), rename(part, target))[1]
    )
    write_atomically(tmp_path / "a", "text", durable=True)
    file, *rest = order
    assert file.match(".a.*.part")
    assert rest == ["rename", tmp_path]
