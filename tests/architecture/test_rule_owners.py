"""A rule is in the package of its section: mb-config, where all sections meet, has those of its own."""

import mb_config
from mb_config.container.plain_config import SECTION_PACKAGES

RESOLVED_HERE = {
    "V030": "the number of replicas, which mb-config computes",
    "V141": "a variable of env_vars",
    "V142": "a variable of env_vars, which resolving sets",
    "V149": "a variable of env_vars",
    "V152b": "a variable of env_vars, which resolving sets",
}


def test_each_rule_of_mb_config_reads_one_of_its_sections():
    sections = {
        rule.id: {path.partition(".")[0] for path in rule.fields} - {"facts"} for rule in mb_config.RULES
    }
    foreign = {id for id, read in sections.items() if read and read <= {*SECTION_PACKAGES}}
    assert foreign == {*RESOLVED_HERE} - {"V141"}


def test_the_first_field_of_a_rule_of_mb_config_is_its_own():
    first = {rule.id for rule in mb_config.RULES if rule.fields[0].partition(".")[0] in SECTION_PACKAGES}
    assert first == {*RESOLVED_HERE} - {"V030"}
