"""Errors of the operating system that mean that this user cannot use a path."""

import errno
import os

import pytest

from mb_schema.unusable_paths import unusable_path


@pytest.mark.parametrize(
    "number", [errno.EACCES, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG]
)
def test_the_message_has_the_path_and_the_reason(number):
    error = OSError(number, os.strerror(number), "some/path")
    assert unusable_path(error) == (
        f"some/path: cannot be used ({os.strerror(number)}). Name another path, or change who may use it."
    )


def test_a_path_of_bytes_is_decoded():
    assert unusable_path(OSError(errno.EPERM, "no", b"a")).startswith("a: cannot be used")


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "full", "a"), OSError(errno.EACCES, "no"), OSError("x")]
)
def test_other_errors_have_no_message(error):
    assert unusable_path(error) is None
