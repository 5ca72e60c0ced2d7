"""Messages of errors."""

import pickle

import pytest

from mb_checkpoint.errors import ManifestError, cause_of, file_problem, first_of


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (FileNotFoundError(2, "No such file or directory", "/c/x"), "No such file or directory: /c/x"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (OSError("no number"), "OSError: no number"),
        (ValueError("x"), "ValueError: x"),
    ],
)
def test_a_cause_has_no_error_number(error, cause):
    assert cause_of(error) == cause


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (ManifestError("/c/manifest.json: is old. Go.", problem="is old"), "manifest.json is old"),
        (OSError(5, "Input/output error"), "manifest.json cannot be read (Input/output error)"),
        (OSError(5, "Input/output error", "/c/.metadata"), ".metadata cannot be read (Input/output error)"),
    ],
)
def test_a_problem_of_a_file_has_its_name_and_no_folder(error, problem):
    assert file_problem(error, "manifest.json") == problem


def test_a_long_list_of_problems_is_shortened():
    assert [first_of("abcde"), first_of("abcdefg", ", ")] == ["a; b; c; d; e", "a, b, c, d, e, and 2 more"]


def test_an_error_of_a_damaged_file_keeps_its_problem_between_ranks():
    sent = pickle.loads(pickle.dumps(ManifestError("/c/m: is old.", problem="is old")))
    assert (str(sent), sent.problem) == ("/c/m: is old.", "is old")
