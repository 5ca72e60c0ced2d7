from mb_config import settings_differences


def test_differences_name_leaves_except_the_ignored_ones():
    saved = {"a": {"b": 1, "c": [1]}, "checkpoint": {"save": "x"}, "gone": 3}
    wanted = {"a": {"b": 2, "c": [1]}, "checkpoint": {"save": "y"}, "new": {"d": 4}}
    found = settings_differences(saved, wanted, ignored={"checkpoint.save"})
    assert found == {"a.b": (1, 2), "gone": (3, None), "new.d": (None, 4)}


def test_a_field_that_an_earlier_version_did_not_have_is_no_difference_at_its_default():
    saved = {"train": {"train_iters": 20}, "peft": None, "profiling": None}
    wanted = {
        "train": {"train_iters": 20, "new": 1, "other": 2},
        "peft": {"dim": 32},
        "profiling": {"record_shapes": False},
    }
    chosen = {"train": {"train_iters": 20, "other": 2}, "peft": {}}
    found = settings_differences(saved, wanted, chosen=chosen)
    assert found == {"train.other": (None, 2), "peft.dim": (None, 32)}
