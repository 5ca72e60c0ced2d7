"""Errors that mean: what was asked for could not be read."""

from __future__ import annotations

from collections.abc import Sequence

from mb_config.masking import leaf, masked, masked_text
from mb_config.message_text import MAX_MESSAGE_LENGTH, truncate, truncate_repr


class ConfigReadError(ValueError):
    """Base of all errors of reading. `path` is the field, `errors` are the parts when there were several.

    No message holds a secret in clear, as far as its name or looks show that it is one. Long values are cut.
    """

    def __init__(self, message: str, *, path: str = "", origin: str = "") -> None:
        self.path = path
        self.origin = origin
        self.message = truncate(masked_text(message), MAX_MESSAGE_LENGTH)
        self.errors: tuple[ConfigReadError, ...] = (self,)
        super().__init__(self.message)

    def __str__(self) -> str:
        return ": ".join(part for part in (self.origin, truncate(self.path), self.message) if part)


class ConfigKeyError(ConfigReadError):
    """A key that does not belong, or one that is missing."""


class UnknownKeyError(ConfigKeyError, KeyError):
    """There is no such field; `nearest` are the paths that may have been meant."""

    def __init__(
        self, message: str, *, path: str = "", origin: str = "", nearest: Sequence[str] = ()
    ) -> None:
        super().__init__(message, path=path, origin=origin)
        self.nearest = tuple(nearest)

    __str__ = ConfigReadError.__str__


class MissingKeyError(ConfigKeyError, KeyError):
    """A field without default was not given."""

    __str__ = ConfigReadError.__str__


class WrongTypeError(ConfigReadError, TypeError):
    """A value that does not fit its field's type."""

    def __init__(self, value: object, expected: str, *, path: str, origin: str = "") -> None:
        shown = masked(leaf(path), value)
        super().__init__(f"expected {expected}, not {truncate_repr(shown)}", path=path, origin=origin)
        self.value = shown
        self.expected = expected


class MaskedValueError(ConfigReadError):
    """A secret that was hidden when the file was written, where it cannot be left out."""

    def __init__(self, *, path: str, origin: str = "") -> None:
        super().__init__(
            "was hidden when the file was written, because no file holds secrets in clear. Give it again, "
            "or delete the line and set the environment variable that it stands for.",
            path=path,
            origin=origin,
        )


class TargetError(ConfigReadError):
    """A `_target_` that is missing or not in the allow-list. Nothing was imported."""


class OverrideError(ConfigReadError):
    """An override that does not parse, or that asks for what overrides cannot do."""


class ConfigFileError(ConfigReadError):
    """A file that is no YAML mapping."""


class ConfigFileNotFoundError(ConfigReadError, FileNotFoundError):
    """There is no such file."""

    __str__ = ConfigReadError.__str__


class ManyReadErrors(ConfigReadError):
    """Several errors of reading at once, in `errors`."""

    def __init__(self, errors: Sequence[ConfigReadError]) -> None:
        super().__init__(f"{len(errors)} errors")
        self.message = "\n".join(str(error) for error in errors)
        self.args = (self.message,)
        self.errors = tuple(errors)


def raise_all(errors: Sequence[ConfigReadError]) -> None:
    """Raise the error, or all of them as one; none, nothing."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ManyReadErrors(errors)
