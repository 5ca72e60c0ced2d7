"""Every rule of every package: its id, severity and fields. Its examples are checked, its sentences may improve."""

from recorded import differences

from mb_trainer.run.rules import RULES


def test_rules_have_the_same_ids_severities_and_fields():
    rules = {rule.id: [rule.severity, *rule.fields] for rule in RULES}
    assert len(rules) == len(RULES)
    assert differences("rules", rules) == {}


def test_every_rule_rejects_its_example_and_has_a_fix():
    silent = [rule.id for rule in RULES if not (rule.message(rule.fails) and rule.why and rule.fix)]
    assert silent == []


def test_no_rule_refuses_the_example_that_passes():
    refused = [rule.id for rule in RULES if rule.message(rule.passes)]
    assert refused == []


def test_a_difference_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr("recorded.FOLDER", tmp_path)
    monkeypatch.delenv("MB_RECORD_GOLDENS", raising=False)
    (tmp_path / "x.json").write_text('{"same": 1, "other": 2, "gone": 3}')
    found = {"same": 1, "other": 4, "new": 5}
    assert differences("x", found) == {"other": (2, 4), "gone": (3, None), "new": (None, 5)}
