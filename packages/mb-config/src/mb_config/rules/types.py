"""Rule on the types of values, which `mb_config.container.section_types` applies to every field."""

from __future__ import annotations

from mb_config.container.field_types import fit
from mb_config.errors import ConfigReadError
from mb_schema.rule_kinds import train_rule
from mb_schema.value_types import FIX, WHY


@train_rule(
    "TY01",
    why=WHY,
    fix=FIX,
    fails={"global_batch_size": "eight"},
    passes={"global_batch_size": 8},
)
def _number_of_sequences(global_batch_size):
    try:
        fit(global_batch_size, int | None, path="train.global_batch_size")
    except ConfigReadError as error:
        return error.message
    return None


WRONG_TYPE = _number_of_sequences
"""The rule applies to every field; its example is one of them."""

RULES = (WRONG_TYPE,)
