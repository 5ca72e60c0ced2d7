"""Base class of the errors of this package, and the errors raised when input cannot be read."""

from __future__ import annotations

from collections.abc import Sequence

from mb_config.cli.message_text import MAX_MESSAGE_LENGTH, truncate, truncate_repr
from mb_schema.errors import PackageError
from mb_schema.secrets import leaf, masked, masked_text


class ConfigurationError(PackageError):
    """Base class of the errors of this package: either bad input or a failure."""


class ConfigReadError(ConfigurationError, ValueError):
    """Base class of errors of reading a configuration.

    Values that look like secrets, by the name of their field or by their form, are masked in the message. Long values
    are truncated.

    Attributes:
        path: Dotted path of the field, such as "optimizer.lr"; empty if the error belongs to no field.
        origin: Where the value was set, such as "run.yaml:3" or "command line"; empty if unknown.
        errors: The individual errors of a `ManyReadErrors`; for any other error, the error itself.
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


class ConsentError(ConfigReadError):
    """A consent that only the command line or code gives, in a file."""


class ConfigKeyError(ConfigReadError):
    """An unknown or a missing key."""


class UnknownKeyError(ConfigKeyError, KeyError):
    """An unknown field. `nearest` contains the paths with similar names."""

    def __init__(
        self, message: str, *, path: str = "", origin: str = "", nearest: Sequence[str] = ()
    ) -> None:
        super().__init__(message, path=path, origin=origin)
        self.nearest = tuple(nearest)


class MissingKeyError(ConfigKeyError, KeyError):
    """A field without a default is not set."""


class InterpolationError(ConfigReadError):
    """A value that refers to a variable or to another field, which is not resolved."""

    def __init__(self, text: str, *, path: str = "", origin: str = "") -> None:
        super().__init__(
            f"contains {text}, which is not resolved, because a configuration reads no variables and no other fields. "
            'Write the value, or let the shell insert it, as in "checkpoint.save=$HOME/run"',
            path=path,
            origin=origin,
        )


class WrongTypeError(ConfigReadError, TypeError):
    """A value that does not match the type of its field."""

    def __init__(self, value: object, expected: str, *, path: str, origin: str = "") -> None:
        shown = masked(leaf(path), value)
        super().__init__(f"expected {expected}, not {truncate_repr(shown)}", path=path, origin=origin)
        self.value = shown
        self.expected = expected


class MaskedValueError(ConfigReadError):
    """A masked secret, as files contain it, in a place where the value is needed."""

    def __init__(self, *, path: str, origin: str = "") -> None:
        super().__init__(
            "the value is masked, because secrets are not written to files. Replace it by the secret, or delete the "
            "line and set the environment variable that the service reads, such as WANDB_API_KEY.",
            path=path,
            origin=origin,
        )


class TargetError(ConfigReadError):
    """A `_target_` that is missing, or names a class that is not in the allow-list. Nothing is imported."""


class OverrideError(ConfigReadError):
    """An override that cannot be parsed or applied."""


class ConfigFileError(ConfigReadError):
    """A file that is not a YAML mapping."""


class ConfigFileNotFoundError(ConfigReadError, FileNotFoundError):
    """The file does not exist."""


class ManyReadErrors(ConfigReadError):
    """Several read errors, in `errors`."""

    def __init__(self, errors: Sequence[ConfigReadError]) -> None:
        super().__init__(f"{len(errors)} errors")
        self.message = "\n".join(str(error) for error in errors)
        self.args = (self.message,)
        self.errors = tuple(errors)


def raise_errors(errors: Sequence[ConfigReadError]) -> None:
    """Raise a single error as it is, or several as one `ManyReadErrors`. Do nothing if there are none."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ManyReadErrors(errors)
