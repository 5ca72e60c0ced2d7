import pytest

from mb_data import blend_from_path, split_matrix


@pytest.mark.parametrize(
    ("data_path", "blend"),
    [
        ("a", (["a"], None)),
        ("a b", (["a", "b"], None)),
        ("30 a 70 b", (["a", "b"], [30.0, 70.0])),
        (["0.3", "a", "0.7", "b"], (["a", "b"], [0.3, 0.7])),
        (["a", "b", "c"], (["a", "b", "c"], None)),
    ],
)
def test_paths_and_weights(data_path, blend):
    assert blend_from_path(data_path) == blend


@pytest.mark.parametrize("data_path", ["30 a b c", " ", [], "-1 a 2 b", "nan a 1 b", "0 a 1 b"])
def test_half_weighted_badly_weighted_and_empty_paths_are_rejected(data_path):
    with pytest.raises(ValueError, match=r"dataset\.data_path"):
        blend_from_path(data_path)


@pytest.mark.parametrize(
    ("split", "matrix"),
    [
        ("90,5,5", [(0.0, 0.9), (0.9, 0.95), (0.95, 1.0)]),
        ("99,1,0", [(0.0, 0.99), (0.99, 1.0), None]),
        ("1", [(0.0, 1.0), None, None]),
    ],
)
def test_split(split, matrix):
    assert [part and tuple(map(pytest.approx, part)) for part in split_matrix(split)] == matrix


@pytest.mark.parametrize("split", ["0,0,0", "", "1,2,3,4", "90%", "-1,2"])
def test_impossible_splits_are_rejected(split):
    with pytest.raises(ValueError, match=r"dataset\.split"):
        split_matrix(split)
