"""Whether a path exists, also one that no system call takes."""

import pytest

from mb_schema.paths import exists


def test_files_and_folders(tmp_path):
    file = tmp_path / "file"
    file.touch()
    assert (exists(str(file)), exists(str(file), as_folder=True)) == (True, False)
    assert (exists(str(tmp_path)), exists(str(tmp_path), as_folder=True)) == (True, True)


@pytest.mark.parametrize("as_folder", [False, True])
@pytest.mark.parametrize("name", ["missing", "a" * 300])
def test_what_is_missing_and_a_name_that_is_too_long(tmp_path, name, as_folder):
    assert exists(str(tmp_path / name), as_folder=as_folder) is False
