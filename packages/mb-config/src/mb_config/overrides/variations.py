"""Parsing of values to sweep over: `a=1,2,4` in Hydra's grammar, or a list for a field that does not take one."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any, get_origin

from mb_config.container.codec import NO_TARGETS, TARGET, join
from mb_config.errors import ConfigReadError, OverrideError, raise_errors
from mb_config.overrides.apply import SECTION_FACTORIES, SectionFactories, apply_overrides
from mb_schema.hydra_text import to_hydra_text
from mb_schema.rules import value_at
from mb_schema.value_types import dataclasses_of, hints, is_open, options


@dataclass(frozen=True, slots=True, kw_only=True)
class Variation:
    """A field and the values to sweep over, as written."""

    path: str
    values: tuple[Any, ...]
    """Numbers, text, lists and mappings."""
    prefix: str = ""
    """Prefix of the override: "", "+" or "++"."""

    def override(self, number: int) -> str:
        """Return the override that sets one of the values."""
        return f"{self.prefix}{self.path}={to_hydra_text(self.values[number])}"


def read_variations(overrides: Iterable[str], config: object) -> tuple[list[str], list[Variation]]:
    """Separate overrides that set one value from those that set several, in order.

    `a=1,2`, `a=choice(1,2)` and `a=range(1,5)` are several values. `a=[1,2]` is several values if the field of `config`
    does not accept lists; otherwise the list is one value, and several lists are written `a=[1,2],[3]`.

    Raises:
        OverrideError: If an argument is not an override, or its values are infinite, as in `interval(0,1)`, or empty.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser  # noqa: PLC0415 - 0.4 s, as in overrides
    from hydra.core.override_parser.types import ValueType  # noqa: PLC0415
    from hydra.errors import HydraException  # noqa: PLC0415

    from mb_config.overrides.hydra_grammar import NonAsciiEscapes  # noqa: PLC0415

    countless = (ValueType.INTERVAL_SWEEP, ValueType.GLOB_CHOICE_SWEEP)
    single: list[str] = []
    several: list[Variation] = []
    for override in overrides:
        letters = NonAsciiEscapes(override)
        try:
            parsed = OverridesParser.create().parse_override(letters.encoded)
        except HydraException:
            single.append(override)  # applying it raises the error
            continue
        if parsed.is_delete():  # has one value at most, which applying it checks
            single.append(override)
            continue
        path = parsed.key_or_group
        values: Sequence[Any] | None = None
        if parsed.is_sweep_override():
            if parsed.value_type in countless:
                raise OverrideError(
                    f"{override!r} has no finite list of values; write them out, as in {path}=1,2", path=path
                )
            values = letters.decode_all(_sweep_values(parsed, override, path=path))
        elif isinstance(parsed.value(), list) and not _takes_list(
            _parents(config, path), path.rpartition(".")[2]
        ):
            values = letters.decode_all(parsed.value())
        if values is None:
            single.append(override)
        elif not values:
            raise OverrideError(f"{override!r} has no values to sweep over; give at least one", path=path)
        else:
            prefix = override[: len(override) - len(override.lstrip("+"))]
            several.append(Variation(path=path, values=tuple(values), prefix=prefix))
    return single, several


def _sweep_values(parsed: Any, override: str, *, path: str) -> list[Any]:
    """Return the values of a sweep override.

    Raises:
        OverrideError: If the range has a step of 0.
    """
    try:
        return list(parsed.sweep_iterator())
    except ValueError as error:
        raise OverrideError(f"{override!r} has no list of values: {error}", path=path) from error


def split_yaml(
    data: Mapping[str, Any], root: type, *, targets: Mapping[str, type] = NO_TARGETS
) -> tuple[dict[str, Any], list[Variation]]:
    """Extract lists from the data of a file for fields of `root` that do not accept lists.

    Returns:
        The data with each such list replaced by its first value, and the lists.
    """
    several: list[Variation] = []
    reduced = _reduce(data, [root], targets, path="", several=several)
    return reduced, several


def to_axes(
    config: Any,
    variations: Iterable[Variation],
    *,
    section_factories: SectionFactories = SECTION_FACTORIES,
    targets: Mapping[str, type] = NO_TARGETS,
) -> tuple[Variation, ...]:
    """Return the variations with values of the types of the fields of `config`, which is not modified.

    Raises:
        ConfigReadError: If fields do not accept values; contains an error for each.
    """
    errors: list[ConfigReadError] = []
    axes = []
    for variation in variations:
        typed = []
        for number in range(len(variation.values)):
            scratch = copy.deepcopy(config)
            try:
                apply_overrides(
                    scratch,
                    [variation.override(number)],
                    section_factories=section_factories,
                    targets=targets,
                )
            except ConfigReadError as error:
                errors.append(error)
            else:
                name = variation.path.partition(".")[0]
                typed.append(value_at(variation.path, {name: getattr(scratch, name)}))
        axes.append(Variation(path=variation.path, values=tuple(typed)))
    raise_errors(errors)
    return tuple(axes)


def _reduce(
    data: Mapping[str, Any],
    classes: Sequence[type],
    targets: Mapping[str, type],
    *,
    path: str,
    several: list[Variation],
) -> dict[str, Any]:
    """Replace each list of a field that takes no list by its first value; `several` receives the lists."""
    reduced: dict[str, Any] = {}
    for key, value in data.items():
        here = join(path, str(key))
        if isinstance(value, Mapping):
            inner = _classes(classes, str(key), value.get(TARGET), targets)
            reduced[key] = _reduce(value, inner, targets, path=here, several=several)
        elif isinstance(value, list) and value and not _takes_list(classes, str(key)):
            several.append(Variation(path=here, values=tuple(value)))
            reduced[key] = value[0]
        else:
            reduced[key] = value
    return reduced


def _classes(parents: Sequence[type], key: str, target: object, targets: Mapping[str, type]) -> list[type]:
    """Return the possible classes of the section at a key."""
    if isinstance(target, str) and target in targets:
        return [targets[target]]
    annotations = [hints(parent)[key] for parent in parents if key in hints(parent)]
    return [cls for annotation in annotations for cls in dataclasses_of(annotation)]


def _parents(config: object, path: str) -> list[type]:
    """Return the class of the section that contains a field, or its possible classes if it is not set."""
    current, classes = config, [type(config)]
    for key in path.split(".")[:-1]:
        current = getattr(current, key, None)
        known = is_dataclass(current) and not isinstance(current, type)
        classes = [type(current)] if known else _classes(classes, key, None, NO_TARGETS)
    return classes


def _takes_list(parents: Sequence[type], key: str) -> bool:
    """Return True if a field accepts a list. True for unknown fields, which are reported when values are read."""
    annotations = [hints(parent)[key] for parent in parents if key in hints(parent)]
    return not annotations or any(
        is_open(annotation) or any(_is_list(option) for option in options(annotation))
        for annotation in annotations
    )


def _is_list(option: Any) -> bool:
    kind = get_origin(option) or option
    return (
        isinstance(kind, type)
        and issubclass(kind, list | tuple | set | frozenset | Sequence)
        and kind is not str
    )
