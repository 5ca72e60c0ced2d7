"""Every rule of every package: its fields, severity, violating and passing examples, and message."""

from recorded import differences

from mb_schema.rules import plain
from mb_trainer.run.preflight import RULES


def example(rule, values):
    """Return the fields of an example and their values, as a YAML file would hold them."""
    return {path: plain(value) for path, value in values.items()}


def test_rules_read_the_same_fields_and_refuse_the_same_examples():
    found = {
        rule.id: {
            "severity": rule.severity,
            "fields": [*rule.fields],
            "fails": example(rule, rule.fails),
            "passes": example(rule, rule.passes),
        }
        for rule in RULES
    }
    assert len(found) == len(RULES)
    assert differences("rules", found) == {}


def test_rules_explain_themselves_in_the_same_sentences():
    found = {
        rule.id: {
            "message": rule.test(*(rule.fails.get(path) for path in rule.fields)),
            "why": rule.why,
            "fix": rule.fix,
        }
        for rule in RULES
    }
    assert differences("rule_messages", found) == {}


def test_no_rule_refuses_the_example_that_passes():
    refused = [rule.id for rule in RULES if rule.test(*(rule.passes.get(path) for path in rule.fields))]
    assert refused == []


def test_a_difference_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr("recorded.FOLDER", tmp_path)
    monkeypatch.delenv("MB_RECORD_GOLDENS", raising=False)
    (tmp_path / "x.json").write_text('{"same": 1, "other": 2, "gone": 3}')
    found = {"same": 1, "other": 4, "new": 5}
    assert differences("x", found) == {"other": (2, 4), "gone": (3, None), "new": (None, 5)}
