"""Mapped data files that are changed, cut short or deleted while they are read."""

import mmap
import os
import time

from mb_data.loading.mapped_files import changed_data_files


def test_mapped_data_files_that_changed_are_named(tmp_path):
    names = ["same.bin", "changed.bin", "cut.idx", "gone.npy", "other.txt"]
    for name in names:
        (tmp_path / name).write_bytes(bytes(8192))
        os.utime(tmp_path / name, (1e9, 1e9))
    mapped = []
    for name in names:
        with (tmp_path / name).open("rb") as file:
            mapped.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    since = time.time() - 1
    (tmp_path / "changed.bin").write_bytes(b"x" * 8192)
    os.truncate(tmp_path / "cut.idx", 100)
    (tmp_path / "gone.npy").unlink()
    (tmp_path / "other.txt").write_bytes(b"")
    found = [line for line in changed_data_files(since=since) if line.startswith(str(tmp_path))]
    for each in mapped:
        each.close()
    assert [line.partition(": ")[0] for line in found] == [
        str(tmp_path / name) for name in ("changed.bin", "cut.idx", "gone.npy")
    ]
    assert ["was changed" in found[0], "was cut short to 100 bytes" in found[1], "deleted" in found[2]] == [
        True
    ] * 3
    assert str(tmp_path) not in str(changed_data_files(since=since))


def test_a_system_without_a_list_of_mapped_files_reports_nothing(tmp_path):
    assert changed_data_files(since=0.0, maps=tmp_path / "none") == []
