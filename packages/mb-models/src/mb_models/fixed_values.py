"""Names of another trainer's class that are no fields here, with the only value that is accepted. No torch."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from mb_models.errors import FixedValueError
from mb_schema.sections import take_aliases


class FixedValuesType(type):
    """Class whose constructor takes the names in `fixed_values`, and aliases: properties that can be assigned."""

    fixed_values: Mapping[str, tuple[object, str]]

    def __call__(cls, *args: Any, **values: Any) -> Any:
        """Construct a section without the fixed names, after a check of their values; then assign the aliases."""
        for name in cls.fixed_values.keys() & values.keys():
            require_fixed(cls, name, values.pop(name))
        aliases = take_aliases(cls, values)
        section = super().__call__(*args, **values)
        for name, value in aliases.items():
            setattr(section, name, value)
        return section


class FixedValues(metaclass=FixedValuesType):
    """Base of sections that take such names in the constructor and as attributes."""

    fixed_values: ClassVar[Mapping[str, tuple[object, str]]] = {}
    """Name -> the only value that is accepted, and why there is no other."""

    if not TYPE_CHECKING:  # a type checker would take any name for valid

        def __setattr__(self, name: str, value: Any) -> None:
            if name in type(self).fixed_values:
                require_fixed(type(self), name, value)
            else:
                super().__setattr__(name, value)

        def __getattr__(self, name: str) -> Any:
            if name not in type(self).fixed_values:
                raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
            return type(self).fixed_values[name][0]


def require_fixed(cls: FixedValuesType, name: str, value: object) -> None:
    """Reject another value than the accepted one.

    Raises:
        FixedValueError: it is another one.
    """
    accepted, reason = cls.fixed_values[name]
    if value is not accepted and value != accepted:
        raise FixedValueError(
            f"{cls.__name__}.{name}: {value!r} is not supported, because {reason}. Leave it at {accepted!r}."
        )
