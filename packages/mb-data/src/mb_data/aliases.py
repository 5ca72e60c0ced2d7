"""Constructor alias for Megatron Core's name of a field. Standard library only."""

from functools import wraps
from typing import Any, TypeVar

Section = TypeVar("Section")


def accept_sequence_length(cls: type[Section]) -> type[Section]:
    """Accept `sequence_length` as a constructor argument in place of the field `seq_length`.

    The constructor raises TypeError if both are given, or neither.
    """
    construct = cls.__init__

    @wraps(construct)
    def constructor(self: Section, *args: Any, **values: Any) -> None:
        if "sequence_length" in values:
            if args or "seq_length" in values:
                raise TypeError(
                    f"{cls.__name__}: seq_length and sequence_length are both given, but name the same field. "
                    "Pass one of them."
                )
            values["seq_length"] = values.pop("sequence_length")
            construct(self, *args, **values)
            self.seq_length = values["seq_length"]  # type: ignore[attr-defined]  # recorded as set
        else:
            construct(self, *args, **values)

    setattr(cls, "__init__", constructor)  # noqa: B010 (a type checker forbids the plain assignment)
    return cls
