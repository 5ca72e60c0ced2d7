"""Recipe functions of Megatron-Bridge, made of the settings in recipes.json. No torch.

An entry is the name of a base and of a model, and the settings of each section; `of` names the earlier recipe from
which it differs, and `left` the fields of the model that the earlier one sets and this one leaves to the config.json.
`meta/tests/bridge_recipes.py` writes the file.
"""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from mb_config import Provenance, get_mixed_precision_config
from mb_config.trainer_api import YamlFile, merge_yaml, recipe
from mb_trainer.bridge import providers, written_recipes
from mb_trainer.bridge.auto_bridge import AutoBridge
from mb_trainer.bridge.recipe_bases import (
    COMMON_RECIPE_ENV_VARS,
    _peft_common,
    _pretrain_common,
    _sft_common,
    default_peft_config,
)
from mb_trainer.config import PEFT, ConfigContainer

FILE = Path(__file__).with_name("recipes.json")
PRECISION = "mixed_precision"
WHOLE = (PRECISION, "env_vars")
"""Sections of which an entry has all settings."""
_BASES = {"pretrain": _pretrain_common, "sft": _sft_common, "peft": _peft_common}


@cache
def entries() -> Mapping[str, Mapping[str, Any]]:
    """Return the entries of all recipes by name, with all settings."""
    modules = written_recipes()["recipes"].values()
    return in_full({name: entry for listed in modules for name, entry in listed.items()})


def in_full(written: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return entries with the settings of those that they differ from, which come before them."""
    complete: dict[str, dict[str, Any]] = {}
    for name, entry in written.items():
        parent = complete.get(entry.get("of", ""), {"settings": {}})
        sections = dict(parent["settings"])
        for section, values in entry["settings"].items():
            is_whole = section in WHOLE or "" in values
            sections[section] = values if is_whole else sections.get(section, {}) | values
        if "left" in entry:
            own = entry["settings"].get("model", {})
            kept = {
                key: value
                for key, value in sections["model"].items()
                if key in own or key not in entry["left"]
            }
            sections["model"] = kept
        complete[name] = {**parent, **entry, "settings": sections}
    return complete


def _build(name: str, peft_scheme: str | PEFT | None = None) -> ConfigContainer:
    entry = entries()[name]
    settings = {section: values.get("", values) for section, values in entry["settings"].items()}
    config = _BASES[entry["base"]]()
    config.env_vars = {**COMMON_RECIPE_ENV_VARS}
    if "hf" in entry:
        config.model = AutoBridge.from_hf_pretrained(entry["hf"]).to_megatron_provider(load_weights=False)
    else:
        config.model = getattr(providers, entry["provider"])(**settings.pop("model", {}))
    if "named" in settings.get(PRECISION, ()):
        config.mixed_precision = get_mixed_precision_config(settings.pop(PRECISION)["named"])
    for section, values in entry["settings"].items():
        for field in (field for field, value in values.items() if value == {}):
            setattr(getattr(config, section), field, {})  # merging would keep the keys of the base
    merge_yaml(config, YamlFile(name=FILE.name, data=settings, lines={}), provenance=Provenance())
    if "adapters" in entry:
        values = entry["adapters"] if isinstance(peft_scheme, str) else {}
        config.peft = default_peft_config(peft_scheme, **values)
    return config


@cache
def __getattr__(name: str) -> Callable[..., ConfigContainer]:
    if name not in entries():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    adapts = "adapters" in entries()[name]

    def build() -> ConfigContainer:
        return _build(name)

    def build_with_adapters(peft_scheme: str | PEFT | None = "lora") -> ConfigContainer:
        return _build(name, peft_scheme)

    function: Callable[..., ConfigContainer] = build_with_adapters if adapts else build
    function.__name__ = function.__qualname__ = name
    function.__doc__ = summary = f"Build the recipe `{name}` of Megatron-Bridge."
    return recipe(summary)(function)
