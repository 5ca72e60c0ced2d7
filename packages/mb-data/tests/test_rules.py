import subprocess
import sys
from types import SimpleNamespace

import pytest

from mb_data import RULES, TokenizerConfig
from mb_data.loading import validation_rules


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_every_rule_rejects_its_failing_and_accepts_its_passing_example(rule):
    assert rule.message(rule.fails) is not None
    assert rule.message(rule.passes) is None
    assert {*rule.fails, *rule.passes} <= {*rule.fields}
    assert rule.why[-1] != "."
    assert rule.fix[-1] == "."


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_no_rule_raises_on_missing_values(rule):
    for example in (rule.fails, rule.passes):
        for lacking in rule.fields:
            assert isinstance(rule.message({**example, lacking: None}), str | None)
    if rule.id != "V045":  # refuses None itself
        assert rule.message({}) is None


def test_ids_are_unique():
    assert len({rule.id for rule in RULES}) == len(RULES)


@pytest.mark.parametrize(
    ("rule_id", "values", "message"),
    [
        ("V044c", ([(["a"], None)] * 3, (["b"], None), None), "set together with"),
        ("V044c", ([(["a"], [1.0, 2.0]), None, None], None, None), "1 prefixes have 2 weights"),
        ("V044c", ([None, None, None], None, None), "0 are blends"),
        ("V044e", ((["a", "b"], [-1.0, 2.0]),), "not positive: -1.0"),
        ("D11", ("SFTTokenizer",), "conversations are formatted by the fine-tuning dataset"),
        ("D11", ("nothing",), "the type does not exist"),
        ("D12", ("HuggingFaceTokenizer", None, None, None, None), "without tokenizer_model"),
        ("D12", ("GPT2BPETokenizer", None, None, "vocab.json", None), "merge_file=None"),
        ("D33", (0,), "is not supported (null_tokenizer_pad_id=0)"),
        ("D83", (1000, None, "e2m1", None, False), "is 1000 with fp4=e2m1"),
        (
            "D113",
            (None, False, {"dataset_name": "squad", "schema_adapter": "squad"}),
            "the dataset has its own",
        ),
        (
            "D113",
            (None, False, {"path_or_dataset": "rows", "schema_adapter": "tulu3"}),
            "'tulu3' is not one of squad, gsm8k, openmathinstruct2",
        ),
    ],
)
def test_other_violations_of_a_rule(rule_id, values, message):
    (rule,) = (rule for rule in RULES if rule.id == rule_id)
    assert message in rule.message(dict(zip(rule.fields, values, strict=False)))


def test_the_default_tokenizer_section_violates_no_rule():
    broken = [
        rule.id
        for rule in RULES
        if rule.fields[0].startswith("tokenizer.")
        and rule.message(
            {path: getattr(TokenizerConfig(), path.partition(".")[2], None) for path in rule.fields}
        )
    ]
    assert broken == []


def test_sections_and_rules_need_the_standard_library_only():
    program = (
        "import mb_data.config, mb_data.rules, sys; print('torch' in sys.modules, 'numpy' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["False", "False"]


SETS = {"multiple_validation_sets": True}
NAMED = {**SETS, "validation_set_names": ["x", "y"]}
TWO = [["a/books", "a/web"], None]


@pytest.mark.parametrize(
    ("validation", "dataset", "violated"),
    [
        (SETS, {"data_path": "a/books a/web"}, []),
        (SETS, {"blend": TWO}, []),
        (SETS, {"blend_per_split": [TWO, None, None], "blend": TWO}, ["T33"]),
        (SETS, {"data_path": "1 a/valid 1 b/valid"}, ["T34"]),
        (NAMED, {"data_path": "1 a/valid 1 b/valid"}, []),
        (NAMED, {"blend_per_split": [None, [["a/books"], None], None]}, ["T34"]),
        (NAMED, {"blend_per_split": [None]}, []),  # a rule of the dataset rejects it
        (SETS, {"data_path": ""}, []),
        ({}, {"blend": TWO}, []),
    ],
)
def test_validation_sets_have_prefixes_and_different_names(validation, dataset, violated):
    values = {f"validation.{name}": value for name, value in validation.items()}
    values |= {
        "dataset.mmap_bin_files": True,
        **{f"dataset.{name}": value for name, value in dataset.items()},
    }
    problems = {rule.id: rule.message(values) for rule in validation_rules.RULES}
    assert [rule_id for rule_id, problem in problems.items() if problem is not None] == violated


def message_of(name, values):
    """Return the message of a rule for these values; the other fields are None."""
    (rule,) = [rule for rule in RULES if rule.id == name]
    return rule.message(values)


def test_v139_packs_as_section_or_mapping():
    packs = SimpleNamespace(packed_sequence_size=2048)
    message = message_of("V139", {"dataset.packed_sequence_specs": packs, "train.micro_batch_size": 2})
    assert message.endswith("the equivalent is micro_batch_size=1 and packs of 4096 tokens")
    assert message_of("V139", {"dataset.packed_sequence_specs": {"packed_sequence_size": 0}}) == (
        "packed_sequence_size=0 is not positive"
    )


@pytest.mark.parametrize(
    ("specs", "words"),
    [
        ({"pad_seq_to_mult": 0}, "pad_seq_to_mult=0 is below 1"),
        ({"packed_sequence_size": 8, "max_single_sequence_length": 0}, "is not from 1 to"),
        ({"packed_sequence_size": 8, "max_single_sequence_length": 8}, None),
    ],
)
def test_v048_numbers_of_packs(specs, words):
    message = message_of("V048", {"dataset.packed_sequence_specs": specs})
    assert message is None if words is None else words in message
