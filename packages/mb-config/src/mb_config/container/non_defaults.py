"""Report of values that differ from Megatron Core's defaults, which a trainer logs at startup."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from mb_config.container.field_access import field_values, megatron_class_name
from mb_config.container.section import field_default
from mb_config.megatron_defaults import megatron_defaults, megatron_version, plain_value
from mb_schema.secrets import masked

_COMPARED = {"optimizer": "OptimizerConfig", "ddp": "DistributedDataParallelConfig", "model": ""}
_LISTED = ("train", "validation", "scheduler", "dataset", "checkpoint", "logger", "tokenizer", "rng")
_RULER = "=" * 70


def non_default_values(config: Any, *, sections: Collection[str] | None = None) -> str:
    """Return the differences of optimizer, ddp and model from Megatron Core, and the values of the other sections.

    Fields that Megatron Core does not have are compared with the defaults of the section. A model with
    `multi_latent_attention` is compared with Megatron's MLATransformerConfig. Secrets are masked; None, functions and
    names that begin with an underscore are omitted.

    Args:
        config: A container or an object with sections as attributes. Sections may be mappings or absent.
        sections: Names of the sections to report; None: all.
    """
    lines = [_RULER, f"Configuration, compared with Megatron Core {megatron_version()}", _RULER]
    present = {
        name: section
        for name in (*_COMPARED, *_LISTED)
        if (section := getattr(config, name, None)) is not None and (sections is None or name in sections)
    }
    for name, section in present.items():
        if name in _COMPARED:
            theirs = megatron_defaults(_COMPARED[name] or megatron_class_name(section))
            lines += _block(name, list(_differences(section, theirs)))
        else:
            shown = {key: value for key, value in _values(section).items() if value is not None}
            lines += _block(name, [f"{key}: {_shown(key, value)}" for key, value in sorted(shown.items())])
    return "\n".join([*lines, _RULER])


def _block(name: str, lines: list[str]) -> list[str]:
    return [f"{name}:", *(f"  {line}" for line in lines or ["all as in Megatron Core"])]


def _differences(section: Any, theirs: Mapping[str, Any]) -> Iterator[str]:
    own = _own_defaults(section)
    for key, value in sorted(_values(section).items()):
        if key in theirs:
            if _differ(value, theirs[key]):
                yield f"{key}: {_shown(key, value)} (Mcore default: {_shown(key, theirs[key])})"
        elif key not in own:
            yield f"{key}: {_shown(key, value)} (not in Mcore)"
        elif _differ(value, own[key]):
            yield f"{key}: {_shown(key, value)} (not in Mcore, default: {_shown(key, own[key])})"


def _differ(value: Any, default: Any) -> bool:
    """Return True if two values differ. An int equals the float of its value; other types are compared as text."""
    plain = plain_value(value)
    return bool(plain != default) and str(plain) != str(default)


def _values(section: Any) -> dict[str, Any]:
    return {
        str(key): value
        for key, value in field_values(section)
        if not str(key).startswith("_") and not (callable(value) and not isinstance(value, type))
    }


def _own_defaults(section: Any) -> dict[str, Any]:
    if isinstance(section, Mapping) or not is_dataclass(section):
        return {}
    defaults = {item.name: field_default(item) for item in fields(section)}
    return {name: plain_value(value) for name, value in defaults.items() if value is not MISSING}


def _shown(key: str, value: Any) -> str:
    return str(masked(key, plain_value(value)))
