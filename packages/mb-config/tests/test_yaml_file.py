"""YAML text: what is written is read back, and every other reader of YAML reads the same."""

from datetime import date

import pytest
import yaml

from mb_config.container.yaml_file import dump_value, dump_yaml, parse_yaml
from mb_config.errors import ConfigFileError

LIKE_NUMBERS = [
    "1e3",
    "12e5",
    "1E-4",
    "7e21",
    "1e400",
    "+.5e1",
    "1_000",
    "0x1f",
    "012",
    "1:30",
    "1.5",
    ".inf",
]
LIKE_OTHERS = [
    "on",
    "no",
    "~",
    "null",
    "2024-05-01",
    "2001-12-14 21:59:43",
    "=",
    "<<",
    "",
    " a",
    "a: b",
    "# x",
    "é",
]


@pytest.mark.parametrize("text", LIKE_NUMBERS + LIKE_OTHERS)
def test_text_is_read_back_as_value_key_and_on_one_line(text):
    data = {"a": text, "list": [text], text: 1, "deep": {text: text}}
    assert parse_yaml(dump_yaml(data)).data == data
    assert parse_yaml(f"{dump_value(text)}: {dump_value(text)}").data == {text: text}


@pytest.mark.parametrize("number", [1e3, 1.2e6, 1e-4, 1e-05, 1e21, 1e300, 0.1, -0.0, float("inf"), 7, 10**18])
def test_numbers_are_read_back_here_and_by_pyyaml(number):
    text = dump_yaml({"a": number})
    assert parse_yaml(text).data == yaml.safe_load(text) == {"a": number}


def test_a_number_with_an_exponent_needs_no_point():
    assert parse_yaml("a: 1e3\nb: -2.5E-2").data == {"a": 1000.0, "b": -0.025}


def test_a_date_is_text():
    assert parse_yaml("revision: 2024-05-01").data == {"revision": "2024-05-01"}
    assert yaml.safe_load("revision: 2024-05-01") == {"revision": date(2024, 5, 1)}


@pytest.mark.parametrize("text", ["!!bool maybe", "!!int ''", "!!float ''"])
def test_values_that_are_not_of_their_tag_are_rejected(text):
    with pytest.raises(ConfigFileError, match=r"run.yaml: invalid YAML: "):
        parse_yaml(f"train: 1\na: {text}", name="run.yaml")


@pytest.mark.parametrize("text", ["!!set {a, b}", "!!binary aGk=", "!!timestamp 2024-05-01", "!!omap [a: 1]"])
def test_values_that_no_section_holds_are_rejected_with_their_line(text):
    with pytest.raises(ConfigFileError, match=r"run.yaml:2: invalid YAML: could not determine a constructor"):
        parse_yaml(f"train: 1\na: {text}", name="run.yaml")
