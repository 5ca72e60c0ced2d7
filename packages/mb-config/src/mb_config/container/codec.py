"""Conversion between sections and plain data, with checks of keys and types, in one walk for each direction.

The converters are those of dataclasses-json: of a field (`metadata=config(encoder=, decoder=)`) or of a class
(`global_config`). Its own walk ignores unknown nested keys, accepts True for an int and None for any type, and reports
no path.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from difflib import get_close_matches
from enum import Enum
from inspect import isabstract
from pathlib import PurePath
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from dataclasses_json import global_config

from mb_config.cli.message_text import truncate_repr
from mb_config.container.field_suggestions import field_alias, unknown_key_error
from mb_config.container.field_types import fit
from mb_config.container.section import given_fields, set_given
from mb_config.errors import (
    ConfigReadError,
    ConsentError,
    InterpolationError,
    MaskedValueError,
    MissingKeyError,
    TargetError,
    UnknownKeyError,
    WrongTypeError,
    raise_errors,
)
from mb_schema.secrets import is_masked, leaf, masked
from mb_schema.value_types import dataclasses_of, describe, hints, is_open, options

MAX_DEPTH = 64
"""Maximum number of levels. A configuration has about five."""


def reject_deep_nesting(value: Any, path: str = "", around: tuple[Any, ...] = ()) -> None:
    """Reject mappings, lists and dataclasses that contain themselves or are nested too deeply.

    Raises:
        ConfigReadError: If a value contains itself, or is nested deeper than `MAX_DEPTH`; has the path.
    """
    inside = _inside(value, path)
    if inside is None:
        return
    if any(value is other for other in around):
        raise ConfigReadError("contains itself", path=path)
    if len(around) >= MAX_DEPTH:
        raise ConfigReadError(f"is nested deeper than {MAX_DEPTH} levels", path=f"{path[:80]}...")
    for here, item in inside:
        reject_deep_nesting(item, here, (*around, value))


def _inside(value: Any, path: str) -> Iterator[tuple[str, Any]] | None:
    """Return the items in a value with their paths; None if it has none."""
    if isinstance(value, list | tuple):
        return ((f"{path}[{index}]", item) for index, item in enumerate(value))
    if isinstance(value, Mapping):
        pairs = ((str(key), item) for key, item in value.items())
    elif not is_dataclass(value) or isinstance(value, type):
        return None
    else:
        pairs = ((item.name, getattr(value, item.name)) for item in fields(value))
    return ((f"{path}.{name}" if path else name, item) for name, item in pairs)


T = TypeVar("T")
Converter: TypeAlias = Callable[[Any], Any]
TARGET = "_target_"
NO_TARGETS: Mapping[str, type] = MappingProxyType({})
_INTERPOLATION = re.compile(
    r"(?<!\\)\$\{\s*(?:[a-z_][\w.]*:[^}]*|[A-Za-z_]\w*(?:\.\w+)+|[A-Z_][A-Z0-9_]*)\s*\}"
)
"""Interpolation of OmegaConf (a resolver or another field) or a variable of a shell; not `{input}` of a template."""


CONSENT = "consent"
"""Key in the metadata of a field that gives a consent, such as to execute code: what may happen, and who gives it. Only
the command line and code set such a field; no file does, and none that is written holds it."""


def consents(config: Any) -> Iterator[tuple[str, str]]:
    """Yield section and name of each field that gives a consent."""
    for section in fields(config):
        value = getattr(config, section.name)
        for item in fields(value) if is_dataclass(value) else ():
            if CONSENT in item.metadata:
                yield section.name, item.name


def to_dict(section: Any, *, secrets: bool = False, defaults: bool = True) -> dict[str, Any]:
    """Convert a section to plain data for YAML or JSON. `from_dict` returns an equal object.

    A value whose class does not follow from the type of its field has the class as `_target_`. Computed fields are
    omitted. A value with an encoder in dataclasses-json, of its field or of its class, is what the encoder returns.

    Args:
        section: A dataclass.
        secrets: Write secrets in clear text instead of masking them.
        defaults: Also write fields that were not set explicitly. Fields without a default are always written.

    Raises:
        WrongTypeError: If a field holds a value that no file can hold, such as a function.
        ConfigReadError: If the data contains itself.
    """
    reject_deep_nesting(section)
    return _ConfigWriter(secrets=secrets, defaults=defaults).section(section, path="")


def from_dict(cls: type[T], data: Mapping[str, Any], *, targets: Mapping[str, type] = NO_TARGETS) -> T:
    """Build `cls` from plain data.

    A value is decoded by dataclasses-json's decoder for its field, or for a class in the type of the field.

    Args:
        cls: A dataclass whose fields may be dataclasses, unions of them, or Any.
        data: Mapping of field names to values. A masked secret counts as not set.
        targets: Classes that `_target_` may name, by dotted name. The classes in a field's own type are always
            allowed, under their dotted or bare name. Nothing is imported by name.

    Raises:
        ConfigReadError: If there are unknown or missing keys, values of a wrong type, or classes that are not allowed.
            The error contains all of them, including a MaskedValueError for each masked secret without a default.
    """
    reject_deep_nesting(data)
    reader = ConfigReader(root=cls, targets=targets)
    result = reader.build(cls, data, path="")
    raise_errors(reader.errors)
    return result


def target_name(cls: type) -> str:
    """Return the dotted name under which a class is written."""
    return f"{cls.__module__}.{cls.__qualname__}"


def is_moved(cls: type, name: str) -> bool:
    """Return whether a dotted name is that of the class in another module of its package, as an earlier file has it."""
    package, _, rest = name.partition(".")
    return package == cls.__module__.partition(".")[0] and rest.rpartition(".")[2] == cls.__qualname__


@dataclass(kw_only=True)
class ConfigReader:
    """Builder of dataclasses from plain data. Errors are collected, so that one run reports all mistakes of a file."""

    root: Any
    """The complete configuration or its class; suggestions for unknown fields are searched in it."""

    targets: Mapping[str, type] = field(default_factory=lambda: NO_TARGETS)
    """Classes that `_target_` may name."""

    locate: Callable[[str], str] = lambda path: ""
    """Function that returns the position of a field in a file."""

    hidden: set[str] = field(default_factory=set)
    """Paths of masked secrets, which are omitted."""

    is_file: bool = False
    """Whether the data is that of a file, which gives no consent: fields with `CONSENT` are rejected."""

    errors: list[ConfigReadError] = field(default_factory=list)
    """Errors so far. Results are invalid once there is one."""

    def note(self, error: ConfigReadError) -> None:
        """Append an error and add its position."""
        error.origin = error.origin or self.locate(error.path)
        self.errors.append(error)

    def build(self, cls: type[T], data: Mapping[str, Any], *, path: str) -> T:
        """Build `cls` and the dataclasses nested in it from the data at `path`."""
        types = hints(cls)
        writable = {f.name: f for f in fields(cls) if f.init}  # type: ignore[arg-type]
        before = len(self.errors)  # nested builds append to the same list
        values: dict[str, Any] = {}
        for key, value in data.items():
            here = join(path, key)
            try:
                if key in writable and is_masked(value):
                    if _is_required(writable[key]):
                        raise MaskedValueError(path=here)
                    self.hidden.add(here)
                elif key in writable:
                    self.reject_consent(writable[key], value, path=here)
                    read = self.value(value, types[key], path=here, item=writable[key])
                    values[key] = self.unmasked(read, path=here)
                elif key != TARGET:
                    alias = field_alias(cls, key)
                    self.note(
                        unknown_key_error(here, writable, self.root)
                        if alias is None
                        else _alias_error(here, join(path, alias))
                    )
            except ConfigReadError as error:
                self.note(error)
        for name, item in writable.items():
            if name not in data and _is_required(item):
                self.note(MissingKeyError("is required", path=join(path, name)))
        if len(self.errors) > before:
            return None  # type: ignore[return-value]
        section = cls(**values)
        set_given(section, values)
        return section

    def reject_consent(self, item: Field[Any], value: Any, *, path: str) -> None:
        """Reject the value of a field that gives a consent, if it is in a file.

        Raises:
            ConsentError: The value gives the consent.
        """
        if self.is_file and value and CONSENT in item.metadata:
            raise ConsentError(
                f"{truncate_repr(value)} is not allowed in a file, because a file may come from elsewhere, and "
                f"{item.metadata[CONSENT]}",
                path=path,
            )

    def unmasked(self, value: Any, *, path: str) -> Any:
        """Return the value without the masked entries of its mappings.

        Raises:
            MaskedValueError: If a masked value is not an entry of a mapping.
        """
        if is_masked(value):
            raise MaskedValueError(path=path)
        if isinstance(value, str) and (found := _INTERPOLATION.search(value)):
            raise InterpolationError(found[0], path=path)
        if type(value) in (list, tuple):
            items = enumerate(value)
            return type(value)(self.unmasked(item, path=f"{path}[{index}]") for index, item in items)
        if not isinstance(value, Mapping):
            return value
        hidden = {key for key, item in value.items() if is_masked(item)}
        self.hidden |= {join(path, key) for key in hidden}
        kept = {key: item for key, item in value.items() if key not in hidden}
        return {key: self.unmasked(item, path=join(path, key)) for key, item in kept.items()}

    def value(self, value: Any, annotation: Any, *, path: str, item: Field[Any] | None = None) -> Any:
        """Return the value converted to the type of its field `item`, by a decoder if it is not of that type.

        Raises:
            WrongTypeError: The value does not match the type, or the decoder rejects it.
        """
        of_field = None if item is None else _converter(item, "decoder")
        decode = of_field or next(filter(None, map(_decoder_of_class, options(annotation))), None)
        if decode and not _matches(value, annotation, path=path):
            try:
                return decode(value)
            except (TypeError, ValueError, ArithmeticError) as error:
                expected = f"{describe(annotation)} ({error})"
                raise WrongTypeError(value, expected, path=path) from error
        if is_open(annotation) and isinstance(value, Mapping) and TARGET in value:
            return self._nested(value, (), path)
        return fit(value, annotation, path=path, nested=self._nested)

    def target(self, data: Mapping[str, Any], candidates: tuple[type, ...], *, path: str) -> type:
        """Return the class to build from the data."""
        name = data.get(TARGET)
        concrete = tuple(cls for cls in candidates if not isabstract(cls))
        if name is None and len(candidates) == 1 and concrete:
            return candidates[0]
        allowed = {target_name(cls): cls for cls in (*self.targets.values(), *concrete)}
        allowed |= {cls.__name__: cls for cls in concrete} | dict(self.targets)
        if name is None and (cls := only_fitting(concrete, data)) is not None:
            return cls
        fitting = [name for name, cls in allowed.items() if not candidates or issubclass(cls, candidates)]
        if name is None:
            raise TargetError(f"needs {TARGET}, {listed_targets(fitting)}", path=path)
        if not isinstance(name, str):
            raise TargetError(
                f"expected the name of a class, not {truncate_repr(name)}", path=join(path, TARGET)
            )
        if (
            name not in allowed
            and len(moved := {cls for cls in allowed.values() if is_moved(cls, name)}) == 1
        ):
            allowed[name] = moved.pop()
        if name not in allowed:
            nearest = nearest_targets(name, fitting)
            hint = f" Did you mean {' or '.join(nearest)}?" if nearest else ""
            more = f" {own}" if (own := getattr(self.targets, "hint", "")) else ""
            raise TargetError(
                f"{truncate_repr(masked(TARGET, name))} is not allowed.{hint} Use {listed_targets(fitting)}.{more}",
                path=join(path, TARGET),
            )
        cls = allowed[name]
        if candidates and not issubclass(cls, candidates):
            expected = " or ".join(candidate.__name__ for candidate in candidates)
            raise TargetError(f"{name} is not a {expected}", path=join(path, TARGET))
        return cls

    def _nested(self, data: Mapping[str, Any], candidates: tuple[type, ...], path: str) -> object:
        return self.build(self.target(data, candidates, path=path), data, path=path)


LISTED_TARGETS = 8
"""Maximum number of classes in a message."""


def listed_targets(names: Iterable[str]) -> str:
    """Return at most `LISTED_TARGETS` classes as text, by their bare names where these are unique."""
    shown = _bare_names(names)
    rest = len(shown) - LISTED_TARGETS
    return f"one of {', '.join(shown[:LISTED_TARGETS])}" + (f" and {rest} more" if rest > 0 else "")


def nearest_targets(name: str, names: Iterable[str]) -> list[str]:
    """Return at most two classes with a name similar to `name`."""
    by_last = {shown.rpartition(".")[2]: shown for shown in _bare_names(names)}
    wanted = name.rpartition(".")[2][:100]
    return [by_last[found] for found in get_close_matches(wanted, by_last, n=2, cutoff=0.6)]


def _bare_names(names: Iterable[str]) -> list[str]:
    """Return each class once: its bare name where that is allowed, its dotted name otherwise."""
    every = set(names)
    return sorted(name for name in every if "." not in name or name.rpartition(".")[2] not in every)


def only_fitting(candidates: tuple[type, ...], data: Mapping[str, Any]) -> type | None:
    """Return the only class that fits the data, or None if there are several.

    A class fits if the data has every field that it requires; classes that know every key are preferred. Keys that no
    class knows are ignored here, so that a misspelled key is reported as such.
    """
    complete = [cls for cls in candidates if all(f.name in data for f in fields(cls) if _is_required(f))]
    knowing = [cls for cls in complete if set(data) <= {f.name for f in fields(cls)}]
    fitting = knowing or complete
    return fitting[0] if len(fitting) == 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _ConfigWriter:
    """Converter from sections to the contents of a file."""

    secrets: bool
    defaults: bool

    def section(self, section: Any, *, path: str) -> dict[str, Any]:
        """Return the fields of a dataclass."""
        annotations = hints(type(section))
        plain = {}
        for item in fields(section):
            if item.init and (self.defaults or self._chosen(section, item)):
                value, encode = getattr(section, item.name), _converter(item, "encoder")
                value = encode(value) if encode and value is not None else value
                plain[item.name] = self.item(value, annotations[item.name], path=join(path, item.name))
        return plain

    def item(self, value: Any, annotation: Any, *, path: str) -> Any:
        """Return one value with the values nested in it."""
        if encode := global_config.encoders.get(type(value)):
            return self._leaf(encode(value), path=path)
        if is_dataclass(value) and not isinstance(value, type):
            plain = self.section(value, path=path)
            known = dataclasses_of(annotation) == (type(value),)
            return plain if known else {TARGET: target_name(type(value)), **plain}
        inner = _inner(annotation)
        if isinstance(value, Mapping):
            return {
                _plain_key(key, path=path): self.item(item, inner, path=join(path, key))
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.item(item, inner, path=f"{path}[{index}]") for index, item in enumerate(value)]
        return self._leaf(value, path=path)

    def _chosen(self, section: Any, item: Field[Any]) -> bool:
        value = getattr(section, item.name)
        if item.name in given_fields(section) or _is_required(item):
            return True
        return is_dataclass(value) and bool(given_fields(value))

    def _leaf(self, value: Any, *, path: str) -> Any:
        if isinstance(value, Enum):
            return value.name
        plain = str(value) if isinstance(value, PurePath) else value
        if isinstance(plain, set | frozenset):
            members = [self._leaf(member, path=path) for member in plain]
            plain = sorted(members, key=lambda member: (type(member).__name__, member))
        elif plain is not None and not isinstance(plain, bool | int | float | str):
            raise WrongTypeError(value, "a value that a file can hold", path=path)
        return plain if self.secrets else masked(leaf(path), plain)


def _plain_key(key: object, *, path: str) -> object:
    """Return the key of a mapping as a file holds it: the name of an enum member, any other plain value unchanged."""
    if isinstance(key, Enum):
        return key.name
    if isinstance(key, PurePath):
        return str(key)
    if key is not None and not isinstance(key, bool | int | float | str):
        raise WrongTypeError(key, "a key that a file can hold", path=path)
    return key


def join(path: str, key: object) -> str:
    """Return the path of a key below a path."""
    return f"{path}.{key}" if path else str(key)


def _converter(item: Field[Any], kind: Literal["encoder", "decoder"]) -> Converter | None:
    """Return a converter that a field has by `dataclasses_json.config`, or None.

    Raises:
        ConfigReadError: The field has another setting, such as a name in the file.
    """
    found: Mapping[str, Converter] = item.metadata.get("dataclasses_json", {})
    if other := found.keys() - {"encoder", "decoder"}:
        raise ConfigReadError(
            f"dataclasses_json.config sets {', '.join(sorted(other))}; only encoder and decoder are supported",
            path=item.name,
        )
    return found.get(kind)


def _decoder_of_class(cls: Any) -> Converter | None:
    return global_config.decoders.get(cls) if isinstance(cls, type) else None


def _matches(value: Any, annotation: Any, *, path: str) -> bool:
    try:
        return fit(value, annotation, path=path) is value
    except WrongTypeError:
        return False


def _alias_error(path: str, field_path: str) -> UnknownKeyError:
    return UnknownKeyError(
        f"is another name of {field_path}, which overrides and partial files take. Write {field_path}",
        path=path,
        nearest=[field_path],
    )


def _is_required(item: Field[Any]) -> bool:
    return item.default is MISSING and item.default_factory is MISSING


def _inner(annotation: Any) -> Any:
    """Return the item type of a container type, or Any if it has none."""
    for option in options(annotation):
        arguments = [argument for argument in get_args(option) if argument is not Ellipsis]
        if arguments:
            return arguments[-1]
    return Any
