"""Every numbered check of Megatron trainers is a rule of some package, or is listed below with a reason."""

import re

from mb_trainer.run.rules import RULES

NUMBERED = [
    *range(1, 4),
    *range(10, 28),
    *range(30, 35),
    *range(40, 49),
    *range(50, 73),
    *range(100, 161),
    *range(170, 181),
    *range(200, 210),
    *range(220, 225),
    *range(240, 250),
]
"""Numbers in use: V001 to V249 with gaps between subjects."""

RESOLVED = "a step of mb_config.runtime_config_update, which returns what it changed"
ORDER = "the order of checks: all rules are applied, all problems reported, so there is none"
RECIPE = "a row of mb_config.resolve.precision_table"
NO_SECTION = "concerns a kind of dataset without a section here"

NOT_RULES = {
    3: "variables are set by the trainer when a job starts; the shell's values win",
    10: "no recipe: nothing happens",
    12: "a recipe that is not a name is taken as it is",
    17: RESOLVED,
    **dict.fromkeys(range(18, 28), RECIPE),
    31: RESOLVED,
    32: NO_SECTION,
    33: "the launcher sets the world size of the trainer; --world-size sets that of a check",
    34: NO_SECTION,
    40: "mb_data.DataloaderConfig.finalize switches persistent workers off",
    41: "seq_length is required by the constructor",
    43: "mb_data.GPTDatasetConfig.finalize loads the file",
    101: "part of V100, which allows the loader `single` as well",
    107: NO_SECTION,
    110: RESOLVED,
    103: "packing is on where its settings are there: there is no second switch",
    104: "packs are always padded to their full length",
    106: "packs under a CUDA graph are refused (D76)",
    108: "mb_data.required_padding, from the parallelism of the model",
    109: "mb_data.required_padding, from the parallelism of the model",
    **dict.fromkeys(range(111, 115), ORDER),
    115: RESOLVED,
    116: ORDER,
    117: RESOLVED,
    121: "the group V170 to V180",
    123: "the group V140 to V142",
    124: "the group V143 and V144",
    125: "the group V145 to V147",
    126: "the group V148 and V149",
    132: "a default that mb-metrics fills in where tensor inspection starts",
    133: RESOLVED,
    136: "the group V200 to V205",
    138: "the group V154 to V157",
    158: RESOLVED,
    **dict.fromkeys(range(170, 175), RESOLVED),
    202: "mb_config.scheduler_steps",
    206: "mb_config.schedules.learning_rate.epoch_iterations, which does not round each epoch up",
    207: "mb_loop steps the schedule by the sequences of the step",
    209: "mb_config.learning_rate",
    **dict.fromkeys(range(220, 225), "the second way to resolve, for models of several modules"),
    241: "there is no such need: the trainer runs on CPU",
    245: "a state of the process: refused where the restart begins",
    249: "how a checkpoint manager is made, not a check of a configuration",
}


def ruled():
    return {int(rule.id[1:4]) for rule in RULES if re.match(r"V\d{3}", rule.id)}


def test_every_number_is_a_rule_or_has_a_reason():
    assert sorted({*NUMBERED} - ruled() - {*NOT_RULES}) == []


def test_a_reason_is_given_only_for_a_number_without_a_rule():
    assert sorted(ruled() & {*NOT_RULES}) == []


def test_no_rule_has_a_number_that_is_not_in_use():
    assert sorted(ruled() - {*NUMBERED}) == []


def test_each_id_belongs_to_one_rule():
    ids = [rule.id for rule in RULES]
    assert sorted({name for name in ids if ids.count(name) > 1}) == []
