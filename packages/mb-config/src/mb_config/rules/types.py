"""Rule on the types of values, which `mb_config.container.section_types` applies to every field."""

from __future__ import annotations

from mb_config.container.field_types import fit
from mb_config.errors import ConfigReadError
from mb_schema.rule_kinds import rule
from mb_schema.value_types import FIX, WHY


def _number_of_sequences(value: object) -> str | None:
    try:
        fit(value, int | None, path="train.global_batch_size")
    except ConfigReadError as error:
        return error.message
    return None


WRONG_TYPE = rule(
    "TY01",
    "train.global_batch_size",
    _number_of_sequences,
    why=WHY,
    fix=FIX,
    fails=("eight",),
    passes=(8,),
)
"""The rule applies to every field; its example is one of them."""

RULES = (WRONG_TYPE,)
