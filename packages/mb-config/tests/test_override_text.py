"""Overrides that are parsed without Hydra have the meaning of Hydra's grammar."""

import subprocess
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mb_config.errors import OverrideError
from mb_config.overrides.hydra_grammar import parse_override
from mb_config.overrides.override_text import parse_plain

PATHS = st.from_regex(r"\+{0,2}[a-z_][a-z0-9_]{0,3}(\.[a-z_][a-z0-9_]{0,3}){0,2}", fullmatch=True)
WORDS = st.sampled_from(
    ["true", "NULL", "nan", "inf", "1e5", "0", "-3", ".5", "1.", "a", "/", "x-y", "_", "007"]
)
VALUES = st.one_of(
    st.lists(WORDS, min_size=1, max_size=3).map("".join),
    st.text(st.sampled_from("aeEnNuUlLtTrRfFiI01.+-/_:=,[]{}()'\" $~@\\"), min_size=1, max_size=8),
    st.integers().map(str),
    st.floats().map(str),
)


@given(path=PATHS, value=VALUES)
@example(path="a", value="1e-4")
@example(path="a", value="Infinity")
@example(path="a", value="-Nan")
@example(path="a.b", value="9" * 400)
def test_plain_overrides_mean_what_hydra_reads(path, value):
    plain = parse_plain(f"{path}={value}")
    if plain is None:
        return
    full = parse_override(f"{path}={value}")
    assert (plain, type(plain.value)) == (full, type(full.value))


@pytest.mark.parametrize("text", ["a=1", "+a.b=x/y-1.json", "++a=null", "a=-2.5e3", "a=TRUE", "a=bf16_mixed"])
def test_frequent_forms_are_plain(text):
    assert parse_plain(text) == parse_override(text)


@pytest.mark.parametrize(
    "text", ["a=", "a", "~a", "a=[1]", "a=1,2", "a/b=c", "a='x'", "a=é", "a@b=c", "a=1 2"]
)
def test_other_forms_are_left_to_hydra(text):
    assert parse_plain(text) is None


def test_hydra_is_not_imported_for_plain_overrides():
    program = (
        "import sys, mb_config.overrides.apply as o, mb_config as c\n"
        "o.apply_overrides(c.TrainingConfig(), ['train_iters=5'])\n"
        "assert 'hydra' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_errors_are_those_of_hydra():
    with pytest.raises(OverrideError, match="cannot parse"):
        parse_override("a=[")
