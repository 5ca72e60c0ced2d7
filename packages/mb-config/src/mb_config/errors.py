"""Base class of the errors of this package, and the errors raised when input cannot be read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from mb_config.masking import leaf, masked, masked_text
from mb_config.message_text import MAX_MESSAGE_LENGTH, truncate, truncate_repr


class ConfigurationError(Exception):
    """Base class of the errors of this package: either bad input or a failure.

    `bad_input` selects the exit code of a program: 2 for bad input, 1 for a failure.
    """

    bad_input: ClassVar[bool] = False
    """If True, the request could not be read; otherwise it was read, and was rejected or failed."""
    internal: ClassVar[bool] = False
    """If True, the calling code is wrong or an invariant is broken: a program prints the traceback."""


class ConfigReadError(ConfigurationError, ValueError):
    """Base class of all read errors. `path` is the field; `errors` are the individual errors if there are several.

    Messages contain no secrets that can be recognized by name or form. Long values are truncated.
    """

    bad_input = True

    def __init__(self, message: str, *, path: str = "", origin: str = "") -> None:
        self.path = path
        self.origin = origin
        self.message = truncate(masked_text(message), MAX_MESSAGE_LENGTH)
        self.errors: tuple[ConfigReadError, ...] = (self,)
        super().__init__(self.message)

    def __str__(self) -> str:
        return ": ".join(part for part in (self.origin, truncate(self.path), self.message) if part)


class ConfigKeyError(ConfigReadError):
    """An unknown or a missing key."""


class UnknownKeyError(ConfigKeyError, KeyError):
    """An unknown field. `nearest` contains the paths with similar names."""

    def __init__(
        self, message: str, *, path: str = "", origin: str = "", nearest: Sequence[str] = ()
    ) -> None:
        super().__init__(message, path=path, origin=origin)
        self.nearest = tuple(nearest)

    __str__ = ConfigReadError.__str__


class MissingKeyError(ConfigKeyError, KeyError):
    """A field without a default is not set."""

    __str__ = ConfigReadError.__str__


class WrongTypeError(ConfigReadError, TypeError):
    """A value that does not match the type of its field."""

    def __init__(self, value: object, expected: str, *, path: str, origin: str = "") -> None:
        shown = masked(leaf(path), value)
        super().__init__(f"expected {expected}, not {truncate_repr(shown)}", path=path, origin=origin)
        self.value = shown
        self.expected = expected


class MaskedValueError(ConfigReadError):
    """A masked secret that cannot be omitted."""

    def __init__(self, *, path: str, origin: str = "") -> None:
        super().__init__(
            "is masked, because files contain no secrets in clear text. Set the value again, or delete the line and "
            "set the environment variable of the service.",
            path=path,
            origin=origin,
        )


class TargetError(ConfigReadError):
    """A `_target_` that is missing or not in the allow-list. Nothing is imported."""


class OverrideError(ConfigReadError):
    """An override that cannot be parsed or applied."""


class ConfigFileError(ConfigReadError):
    """A file that is not a YAML mapping."""


class ConfigFileNotFoundError(ConfigReadError, FileNotFoundError):
    """The file does not exist."""

    __str__ = ConfigReadError.__str__


class ManyReadErrors(ConfigReadError):
    """Several read errors, in `errors`."""

    def __init__(self, errors: Sequence[ConfigReadError]) -> None:
        super().__init__(f"{len(errors)} errors")
        self.message = "\n".join(str(error) for error in errors)
        self.args = (self.message,)
        self.errors = tuple(errors)


def raise_all(errors: Sequence[ConfigReadError]) -> None:
    """Raise a single error as it is, or several as one `ManyReadErrors`. Do nothing if there are none."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ManyReadErrors(errors)
