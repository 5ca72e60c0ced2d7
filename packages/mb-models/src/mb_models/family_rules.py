"""Rules on models of one family: hybrid models, T5, vision-language models."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from mb_schema.rule_kinds import DEGREES, section_rule
from mb_schema.rules import Rule

EXAMPLES: Mapping[str, object] = {
    "hybrid_layer_pattern": "M-*-",
    "decoder_seq_length": 128,
    "vision_num_layers": 2,
}
"""Field that exactly one family has, in every section of it, and an example of its value."""


def family_rule(
    field: str, id: str, *, fails: Mapping[str, object], **options: Any
) -> Callable[[Callable[..., str | None]], Rule]:
    """Return a decorator like `section_rule("model", id, fails=fails, **options)`, for rules of a family.

    The rule does not apply to sections of another family, which lack the field of this family (None), and not to
    parallel sizes below 1, which rule P01 rejects. A condition may have the field as a parameter.

    Args:
        field: Field of the family, one of `EXAMPLES`; the examples of the rule have its value from there.
        id: Identifier.
        fails: Example that the rule rejects.
        options: Further arguments of `section_rule`.
    """

    def of(test: Callable[..., str | None]) -> Rule:
        reads_field = field in test.__code__.co_varnames[: test.__code__.co_argcount]
        others = (*options.pop("others", ()), *(() if reads_field else (field,)))
        examples = {field: EXAMPLES[field], **fails}
        rule = section_rule("model", id, others=others, fails=examples, **options)(test)
        sizes = {*DEGREES, "vision_tensor_model_parallel_size"}.intersection(rule.parameters)

        def tested(**values: Any) -> str | None:
            other_family = values[field] is None
            if other_family or any(values[name] is not None and values[name] < 1 for name in sizes):
                return None
            return test(**{name: value for name, value in values.items() if reads_field or name != field})

        return replace(rule, test=tested)

    return of
