"""Rows and settings of files that may come from elsewhere; names are tested where checkpoints are."""

import time

import pytest

from mb_schema.json_rows import DEEPEST, LONGEST, parse_row, step_of_row

DAMAGED = [
    b"",
    b"null",
    b"5",
    b"[1]",
    b'{"step": 1',
    b"\xff\xfe\x00",
    b"[" * 50_000,
    b'{"a": ' * 50_000,
    b'{"a": ' + b"9" * 5000 + b"}",
    b'{"a": ' + b"[" * DEEPEST + b"]" * DEEPEST + b"}",
    b'{"a": "' + b"x" * LONGEST + b'"}',
]


@pytest.mark.parametrize("line", DAMAGED, ids=range(len(DAMAGED)))
def test_a_line_that_is_no_row_is_left_out(line):
    assert parse_row(line) is None


def test_a_row_is_read():
    assert parse_row('{"step": 1, "a": [{"b": null}]}') == {"step": 1, "a": [{"b": None}]}


@pytest.mark.parametrize("step", [None, "1", 1.0, True, 2**63, -(2**63) - 1, []])
def test_a_step_is_an_integer_of_64_bits(step):
    assert step_of_row({"step": step}) is None
    assert step_of_row({}) is None
    assert step_of_row({"step": 2**63 - 1}) == 2**63 - 1


ALIASES = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join(['*' + before] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
SETTINGS = [
    "",
    "5",
    "[a]",
    "a: [",
    "a: &a [*a]",
    ALIASES,
    "a: " + "[" * 5000,
    "a: " + "9" * 5000,
    "a: !!bool maybe",
    "a: !!int ''",
    "a: !!timestamp now",
    "? [a]\n: b",
    "1: b",
    "a: !!python/object/apply:os.system [id]",
    "a" * (1 << 23),
]


def test_values_of_yaml_are_those_that_people_mean():
    yaml = pytest.importorskip("yaml")
    from mb_schema.yaml_settings import load_settings

    text = "{time: 12:30:00, minutes: 1:30, lr: 1e-3, day: 2024-05-01, steps: 1_000, on: true}"
    found = load_settings(text, yaml)
    assert found == {
        "time": "12:30:00",
        "minutes": "1:30",
        "lr": 0.001,
        "day": "2024-05-01",
        "steps": 1000,
        True: True,
    }
    assert load_settings("", yaml) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: " + "[" * 100, "nested deeper than 64 levels"),
        (ALIASES, "aliases make more than 100000 values"),
        ("&a [*a]", "a value contains itself through an alias"),
        ("a: !!int x", "a value is not of its tag"),
        ("#" * (1 << 23), "larger than 4194304 characters"),
    ],
    ids=["deep", "aliases", "loop", "tag", "large"],
)
def test_a_limit_is_an_error_of_yaml(text, reason):
    yaml = pytest.importorskip("yaml")
    from mb_schema.yaml_settings import load_settings

    with pytest.raises(yaml.YAMLError, match=reason):
        load_settings(text, yaml)


@pytest.mark.parametrize("text", SETTINGS, ids=range(len(SETTINGS)))
def test_text_without_settings_is_none(text):
    yaml = pytest.importorskip("yaml")
    from mb_schema.yaml_settings import parse_settings

    began = time.process_time()
    assert parse_settings(text.encode(), yaml) is None
    assert time.process_time() - began < 1
    assert parse_settings(b"\xff\xfe", yaml) is None
    assert parse_settings(b"a: &x [1, 2]\nb: *x\n", yaml) == {"a": [1, 2], "b": [1, 2]}
