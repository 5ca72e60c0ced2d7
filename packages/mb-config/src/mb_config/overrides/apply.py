"""Changes to a configuration from a command line or a partial YAML file."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args, get_origin, is_typeddict

from mb_config.cli.message_text import truncate_repr
from mb_config.container.codec import NO_TARGETS, TARGET, ConfigReader, is_moved, join, target_name
from mb_config.container.field_suggestions import field_alias, section_fields, unknown_key_error
from mb_config.container.field_types import fit_key
from mb_config.container.section import field_default, unrecorded
from mb_config.container.yaml_file import YamlFile, read_yaml
from mb_config.errors import (
    ConfigReadError,
    MaskedValueError,
    OverrideError,
    WrongTypeError,
    raise_errors,
)
from mb_config.overrides.override_text import Override, parse_plain
from mb_config.overrides.provenance import Provenance
from mb_config.overrides.shell_line import reject_spaced
from mb_config.resolve.precision_recipes import get_mixed_precision_config
from mb_schema.secrets import is_masked, masked
from mb_schema.value_types import hints, is_open, options

SectionFactories = Mapping[str, Callable[[str], object]]
"""Section path to the function that makes the section from a name, as in `mixed_precision=bf16_mixed`."""

SECTION_FACTORIES: SectionFactories = MappingProxyType({"mixed_precision": get_mixed_precision_config})
COMMAND_LINE = "command line"
_INIT_ONLY = dataclasses._FIELD_INITVAR  # type: ignore[attr-defined]


def apply_overrides(
    config: Any,
    overrides: Iterable[str],
    *,
    section_factories: SectionFactories = SECTION_FACTORIES,
    targets: Mapping[str, type] = NO_TARGETS,
    provenance: Provenance | None = None,
) -> Provenance:
    """Apply overrides in Hydra's grammar to `config` in place, in order.

    `a.b=c` changes a field; a section that is None is created with its defaults. `a.b={c: d}` sets keys of a
    field that is a mapping, which may be new. `a._target_=C` makes a section of that class with the values of all other
    changes below `a`, in whichever order. `+a.b=c` adds a field or key that is
    not set, and `++a.b=c` changes or adds. `~a.b` deletes: an optional field becomes None, another field its default,
    and the key of a mapping is removed. Sections of frozen classes are replaced by changed copies. At the end,
    `__post_init__` of each changed section runs again: it checks the new values, and computes others from them.

    Args:
        config: A dataclass of sections.
        overrides: Overrides as on a command line.
        section_factories: Section path to the function that makes the section from a name.
        targets: Classes that `_target_` may name.
        provenance: Receives the origin of every field that is set; None: a new one is created.

    Raises:
        ConfigReadError: If overrides could not be applied; contains every error. Discard `config` in this case.
    """
    record = Provenance.of(config) if provenance is None else provenance
    texts = list(overrides)
    if not texts:
        return record
    reject_spaced(texts)
    # Errors of all overrides are collected in the reader, so that one run reports them together.
    reader = ConfigReader(root=config, targets=targets, locate=lambda path: COMMAND_LINE)
    parsed: list[Override] = []
    for text in texts:
        try:
            parsed.append(parse_plain(text) or _parse_with_hydra(text))
        except ConfigReadError as error:
            reader.note(error)
    changed: dict[str, Any] = {}
    for override in _join_below_targets(parsed):
        editor = _SectionEditor(
            reader=reader, section_factories=section_factories, provenance=record, changed=changed
        )
        try:
            editor.apply(config, override)
        except ConfigReadError as error:
            reader.note(error)
    _initialise_again(changed, reader=reader)
    raise_errors(reader.errors)
    return record


def _join_below_targets(overrides: Sequence[Override]) -> list[Override]:
    """Join `a._target_=C` and the other changes below `a` to one, since the class may require fields without a default.

    The joined override has the position of the first of them.
    """
    sections = {
        override.keys[:-1]
        for override in overrides
        if override.kind == "change" and override.keys[-1] == TARGET and len(override.keys) > 1
    }
    joined: dict[tuple[str, ...], dict[str, Any]] = {}
    rest: list[Override] = []
    for override in overrides:
        section = next((keys for keys in sections if override.keys[: len(keys)] == keys), None)
        if section is None or override.kind != "change" or override.keys == section:
            rest.append(override)
            continue
        if section not in joined:
            joined[section] = {}
            rest.append(replace(override, keys=section, value=joined[section]))
        inner = joined[section]
        *parents, name = override.keys[len(section) :]
        for key in parents:
            if not isinstance(inner.get(key), dict):
                inner[key] = {}
            inner = inner[key]
        inner[name] = override.value
    return rest


def _initialise_again(changed: Mapping[str, Any], *, reader: ConfigReader) -> None:
    """Call `__post_init__` of the changed sections, innermost first: it checks fields and computes others from them."""
    if reader.errors:  # it would see fields without the values that were rejected
        return
    for path, section in sorted(changed.items(), key=lambda item: -item[0].count(".") - bool(item[0])):
        initialise = getattr(section, "__post_init__", None)
        parameters = init_only_values(type(section)) if initialise is not None else None
        if initialise is None or parameters is None:
            continue
        try:
            with unrecorded(section):
                initialise(*parameters)
        except ConfigReadError as error:
            reader.note(error)
        except (TypeError, ValueError) as error:
            reader.note(ConfigReadError(str(error), path=path))


def init_only_values(cls: Any) -> list[Any] | None:
    """Return the defaults of the InitVars of a dataclass; None if one of them has no default."""
    names = [name for name, item in cls.__dataclass_fields__.items() if item._field_type is _INIT_ONLY]
    return [getattr(cls, name) for name in names] if all(hasattr(cls, name) for name in names) else None


def is_frozen(section: Any) -> bool:
    """Return whether an object is of a frozen dataclass."""
    parameters = getattr(type(section), "__dataclass_params__", None)
    return parameters is not None and bool(parameters.frozen)


def _field_keys(config: Any, keys: Iterable[str]) -> tuple[str, ...]:
    """Return the keys of a path with the names of fields in place of other names that sections take."""
    found: list[str] = []
    for key in keys:
        owner = _lookup(config, found)
        alias = None if key in section_fields(owner) else field_alias(owner, key)
        found += [key] if alias is None else alias.split(".")
    return tuple(found)


def _parse_with_hydra(text: str) -> Override:
    from mb_config.overrides.hydra_grammar import parse_override  # noqa: PLC0415 - 0.4 s

    return parse_override(text)


def apply_yaml(
    config: Any,
    path: str | Path,
    *,
    section_factories: SectionFactories = SECTION_FACTORIES,
    targets: Mapping[str, type] = NO_TARGETS,
    provenance: Provenance | None = None,
) -> Provenance:
    """Merge a partial YAML file into `config` in place. Fields that the file does not contain are unchanged.

    Raises:
        ConfigReadError: If data could not be read; contains every error with file and line. Discard `config` in this
            case.
    """
    record = Provenance.of(config) if provenance is None else provenance
    merge_yaml(
        config, read_yaml(path), section_factories=section_factories, targets=targets, provenance=record
    )
    return record


def merge_yaml(
    config: Any,
    file: YamlFile,
    *,
    section_factories: SectionFactories = SECTION_FACTORIES,
    targets: Mapping[str, type] = NO_TARGETS,
    provenance: Provenance,
) -> None:
    """Merge the data of a file that has been read into `config` in place; see `apply_yaml`."""
    reader = ConfigReader(root=config, targets=targets, locate=file.locate, is_file=True)
    editor = _SectionEditor(
        reader=reader, section_factories=section_factories, provenance=provenance, adding=True
    )
    editor.merge(config, file.data, path="")
    _initialise_again(editor.changed, reader=reader)
    raise_errors(reader.errors)


@dataclass(frozen=True, slots=True, kw_only=True)
class MappingTypes:
    """Types of the keys and values of a field that is a mapping."""

    key: Any = Any
    values: Any = Any
    """Type of every value; for a TypedDict, the type of each key's value by key."""
    free: bool = False
    """Whether keys may be new without a "+"."""

    @classmethod
    def of(cls, annotation: Any, *, free: bool = False) -> MappingTypes:
        """Return the types of a field or of a value that is a mapping itself."""
        for option in options(annotation):
            if is_typeddict(option):
                return cls(key=str, values=hints(option), free=free)
            origin = get_origin(option)
            if isinstance(origin, type) and issubclass(origin, Mapping):
                key, values = get_args(option)
                return cls(key=key, values=values, free=free)
        return cls(free=free)

    def value(self, key: Any) -> Any:
        """Return the type of the value of a key."""
        return self.values.get(key, Any) if isinstance(self.values, dict) else self.values


ANY_MAPPING = MappingTypes()


@dataclass(kw_only=True)
class _SectionEditor:
    """Merger of plain data into sections."""

    reader: ConfigReader
    section_factories: SectionFactories
    provenance: Provenance
    adding: bool = False
    text: str | None = None
    path: str = field(default="", init=False)
    changed: dict[str, Any] = field(default_factory=dict)
    """Path of each section whose fields were set, to the section."""
    mapping: str | None = field(default=None, init=False)
    """Path of the field to which an override assigns a mapping, whose keys may be new."""

    def apply(self, config: Any, override: Override) -> None:
        """Apply one override."""
        if override.kind == "delete":
            self._delete(config, replace(override, keys=_field_keys(config, override.keys)))
            return
        self.adding = override.kind in ("add", "force")
        self.text = override.text
        is_field = len(override.keys) > 1  # a section may be a mapping, too, but its keys are known
        self.mapping = override.path if is_field and isinstance(override.value, Mapping) else None
        if override.kind == "add" and _lookup(config, _field_keys(config, override.keys)) is not None:
            raise OverrideError("is already set; use = or ++ instead of +", path=override.path)
        data: Any = override.value
        for key in reversed(override.keys):
            data = {key: data}
        self.merge(config, data, path="")

    def merge(
        self, target: Any, data: Mapping[str, Any], *, path: str, types: MappingTypes = ANY_MAPPING
    ) -> None:
        """Set the values of `data` in a section or a mapping. Errors are collected; remaining values are still set."""
        for key, value in data.items():
            try:
                if is_masked(value):
                    self._leave_hidden(join(path, key))
                elif isinstance(target, dict):
                    self._set_key(target, key, value, path=join(path, key), types=types)
                elif key != TARGET:
                    self._set_field(target, key, value, path=join(path, key))
            except ConfigReadError as error:
                self.reader.note(error)

    def _leave_hidden(self, path: str) -> None:
        """Skip a masked secret of a file. On a command line it can only be a mistake, and is an error."""
        if self.text is not None:
            raise MaskedValueError(path=path)
        self.reader.hidden.add(path)

    def _set_field(self, section: Any, key: str, value: Any, *, path: str, new_keys: bool = False) -> None:
        """Set a field of a section. A mapping changes the parts that it names, if the current value has any.

        With `new_keys`, a field that is a mapping takes any key.
        """
        names = section_fields(section)
        if key not in names:
            alias = field_alias(section, key)
            if alias is None:
                raise unknown_key_error(path, names, self.reader.root)
            self._set_alias(section, alias, value, path=path)
            return
        item = type(section).__dataclass_fields__[key]
        self.reader.reject_consent(item, value, path=path)
        annotation = hints(type(section))[key]
        current = self._expand(section, key, value, path=path)
        if isinstance(value, Mapping) and self._goes_into(current, value):
            if is_frozen(current):
                current = copy(current)  # the default of a field is shared
                self.assign(section, key, current, path=path)
            self.merge(
                current,
                value,
                path=path,
                types=MappingTypes.of(annotation, free=new_keys or is_open(annotation)),
            )
            return
        if isinstance(value, str) and path in self.section_factories:
            made = self._made_from_name(value, path=path)
            value = value if str in options(annotation) else made
            self.assign(section, key, value, path=path)
        else:
            read = self._read(value, annotation, path=path, item=item)
            self.assign(section, key, self.reader.unmasked(read, path=path), path=path)
        self._note(path, value)

    def _set_alias(self, section: Any, alias: str, value: Any, *, path: str) -> None:
        """Set the field, or the entry of a mapping, that another name of the section is for."""
        name, *keys = alias.split(".")
        for key in reversed(keys):
            value = {key: value}
        self._set_field(section, name, value, path=join(path.rpartition(".")[0], name), new_keys=True)

    def _made_from_name(self, name: str, *, path: str) -> Any:
        try:
            return self.section_factories[path](name)
        except ConfigReadError:
            raise
        except ValueError as error:  # of a factory in another package
            raise ConfigReadError(str(error)) from error

    def _set_key(
        self, target: dict[Any, Any], key: Any, value: Any, *, path: str, types: MappingTypes
    ) -> None:
        """Set a key of a mapping, as `_set_field` does a field. A new key requires `+`, or a mapping of any keys."""
        key = fit_key(key, types.key, path=path)
        if self.text is not None:
            key = _key_of(target, key)
        value_type = types.value(key)
        is_spelled_out = self.mapping is not None and path.startswith(f"{self.mapping}.")
        if key not in target and not (self.adding or types.free or is_spelled_out):
            error = unknown_key_error(path, target, self.reader.root)
            error.message += f"; write +{path}=... to add it"
            raise error
        current = target.get(key)
        if isinstance(value, Mapping) and self._goes_into(current, value):
            if is_frozen(current):
                current = target[key] = copy(current)
            self.merge(current, value, path=path, types=MappingTypes.of(value_type, free=types.free))
            return
        target[key] = self.reader.unmasked(self._read(value, value_type, path=path), path=path)
        self._note(path, value)

    def assign(self, section: Any, name: str, value: Any, *, path: str) -> None:
        """Set a field of a section, which is a copy if its class is frozen, and note the section as changed."""
        above = path.rpartition(".")[0]
        if not is_frozen(section):
            setattr(section, name, value)
        elif above:
            object.__setattr__(section, name, value)
        else:
            raise OverrideError(
                f"cannot be changed in place, because {type(section).__name__} is frozen; make that class mutable",
                path=path,
            )
        self.changed[above] = section

    def _read(self, value: Any, annotation: Any, *, path: str, item: Field[Any] | None = None) -> Any:
        """Return the value converted to the type of the field. On a command line, 123 is also accepted as text."""
        try:
            return self.reader.value(value, annotation, path=path, item=item)
        except WrongTypeError:
            scalar = isinstance(value, int | float)
            if self.text is None or not scalar or str not in options(annotation):
                raise
            return self.text

    def _expand(self, section: Any, key: str, value: Any, *, path: str) -> Any:
        """Return the current value. A name is replaced by its section if one of its fields is to be set."""
        current = getattr(section, key)
        if isinstance(current, str) and isinstance(value, Mapping) and path in self.section_factories:
            current = self.section_factories[path](current)
            self.assign(section, key, current, path=path)
        return current

    def _goes_into(self, current: Any, value: Mapping[str, Any]) -> bool:
        if isinstance(current, dict):
            return TARGET not in value
        if not is_dataclass(current):
            return False
        if TARGET not in value:
            return True
        cls, name = type(current), str(value[TARGET])
        return name in (cls.__name__, target_name(cls)) or is_moved(cls, name)

    def _note(self, path: str, value: Any) -> None:
        if path in self.reader.hidden:
            return
        self.provenance.note(path, self.reader.locate(path))
        if isinstance(value, Mapping):
            for key, item in value.items():
                self._note(join(path, key), item)

    def _delete(self, config: Any, override: Override) -> None:
        """Remove a key of a mapping, or set a field to null or its default; with a value, only if it has that one."""
        *parents, key = override.keys
        owner = self._owner(config, parents)
        names = section_fields(owner)
        if key not in names:
            raise unknown_key_error(override.path, names, self.reader.root)
        current = _lookup(owner, [key])
        if override.has_value and current != override.value:
            current_text, given_text = masked(key, current), masked(key, override.value)
            raise OverrideError(
                f"is {truncate_repr(current_text)}, not {truncate_repr(given_text)}, so it is not deleted",
                path=override.path,
            )
        if isinstance(owner, dict):
            del owner[_key_of(owner, key)]
        else:
            self.assign(owner, key, _emptied(owner, key, path=override.path), path=override.path)
        self.provenance.note(override.path, COMMAND_LINE)

    def _owner(self, config: Any, keys: Iterable[str]) -> Any:
        """Return the section or mapping at a path, in which sections of frozen classes are replaced by copies."""
        owner, path = config, ""
        for key in keys:
            inner, path = _lookup(owner, [key]), join(path, key)
            if is_frozen(inner):  # the default of a field is shared
                inner = copy(inner)
                if isinstance(owner, dict):
                    owner[_key_of(owner, key)] = inner
                else:
                    self.assign(owner, key, inner, path=path)
            owner = inner
        return owner


def _key_of(mapping: Mapping[Any, Any], name: Any) -> Any:
    """Return the key of a mapping that an override names, or the name if there is none: keys may be numbers."""
    return name if name in mapping else next((key for key in mapping if str(key) == str(name)), name)


def _lookup(config: Any, keys: Iterable[str]) -> Any:
    value = config
    for key in keys:
        if isinstance(value, Mapping):
            value = value.get(_key_of(value, key))
        elif key in section_fields(value):
            value = getattr(value, key)
        else:
            return None
    return value


def _emptied(section: Any, key: str, *, path: str) -> Any:
    """Return the value of a field after `~`."""
    kinds = options(hints(type(section))[key])
    item = next(item for item in fields(section) if item.name == key)
    if type(None) in kinds or is_open(hints(type(section))[key]):
        return None
    if (default := field_default(item)) is MISSING:
        raise OverrideError("cannot be deleted, because it is required", path=path)
    return default
