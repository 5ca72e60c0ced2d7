"""Constructor alias for Megatron Core's name of a field. Standard library only."""

from functools import wraps
from typing import Any, TypeVar

Section = TypeVar("Section")


def accept_sequence_length(cls: type[Section]) -> type[Section]:
    """Accept `sequence_length` as a constructor argument in place of the field `seq_length`.

    The same holds for any property of the class that can be assigned, such as `offline_packing_specs`.

    The constructor raises TypeError if both are given, or neither.
    """
    construct = cls.__init__

    @wraps(construct)
    def constructor(self: Section, *args: Any, **values: Any) -> None:
        aliases = {name: values.pop(name) for name in [*values] if _is_settable(cls, name)}
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
        for name, value in aliases.items():
            setattr(self, name, value)

    setattr(cls, "__init__", constructor)  # noqa: B010 (a type checker forbids the plain assignment)
    return cls


def _is_settable(cls: type, name: str) -> bool:
    found = getattr(cls, name, None)
    return isinstance(found, property) and found.fset is not None
