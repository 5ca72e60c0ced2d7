import pytest

from mb_schema.megatron_flags import FlagTable, MegatronFlag, evaluate

TABLE = FlagTable(
    {
        "lr": MegatronFlag(options={"--lr": "value"}, type="float"),
        "split": MegatronFlag(options={"--split": "value"}, choices=("a", "b")),
        "add_bias": MegatronFlag(options={"--add-bias": "true", "--disable-bias": "false"}, default=True),
        "step_batch_size_schedule": MegatronFlag(options={"--step-batch-size-schedule": "value"}),
        "data_path": MegatronFlag(options={"--data-path": "value"}, nargs="*"),
    }
)


def test_values_have_the_types_of_the_table_and_only_those_that_are_given():
    line = "--lr 1e-3 --disable-bias --step-batch-size-schedule 0:8 9:16 --data-path 1 x --split=a y"
    assert TABLE.parse(line.split(), error=ValueError) == (
        {
            "lr": 1e-3,
            "add_bias": False,
            "step_batch_size_schedule": "0:8 9:16",
            "data_path": ["1", "x"],
            "split": "a",
        },
        ["y"],
    )


@pytest.mark.parametrize(
    ("line", "message"), [("--lr", "expected one argument"), ("--split c", "invalid choice")]
)
def test_a_wrong_value_is_the_error_of_the_caller(line, message):
    with pytest.raises(KeyError, match=message):
        TABLE.parse(line.split(), error=KeyError)


def test_unknown_flags_have_a_hint():
    assert [TABLE.knows(word) for word in ("--lr", "--lr=1", "--learning-rate", "1")] == [
        True,
        True,
        False,
        False,
    ]
    assert TABLE.hint("--add-bais") == " Did you mean --add-bias?"
    assert TABLE.hint("--nothing-like-it") == ""


@pytest.mark.parametrize(
    ("text", "value"),
    [("2", 2), ("0.5", 0.5), ("128,0", [128, 0]), ("([0]*3+[1])*2", [0, 0, 0, 1] * 2), ("2*[1]", [1, 1])],
)
def test_expressions_of_lists(text, value):
    assert evaluate(text) == value


@pytest.mark.parametrize(
    "text", ["f(1)", "a", "[1]*9999999999", "[1]+2", "[1]*[1]", "1-2", "", "(" * 999, "'a'"]
)
def test_other_expressions_are_no_values(text):
    with pytest.raises(ValueError):
        evaluate(text)


def test_the_types_of_numbers_can_be_restricted():
    with pytest.raises(ValueError, match="Constant is not a value"):
        evaluate("[0.5]", number=int)
