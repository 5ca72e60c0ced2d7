"""Write recipes.json of `mb_trainer.bridge`: what each recipe of Megatron-Bridge sets, as data.

`python bridge_recipes.py DIR` runs the recipes in the folder `megatron/bridge` of its wheel, with their imports
replaced, and records the settings that differ from `_pretrain_common`, `_sft_common` or `_peft_common`. A model of
Hugging Face is named, its config.json is not part of the file; of models that are not in the cache of the hub, what a
recipe assigns is recorded. A recipe is written as the difference from an earlier one of its family where that is
shorter.
"""

import ast
import inspect
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import mb_guard
import mb_host

mb_host.install()  # before megatron is imported
mb_guard.install(quiet=True)

import mb_trainer.bridge.recipe_bases as bases  # noqa: E402
from mb_config import get_mixed_precision_config, to_dict  # noqa: E402
from mb_config.container.section import given_record, set_by  # noqa: E402
from mb_models.errors import HuggingFaceError  # noqa: E402
from mb_models.trainer_api import megatron_fields  # noqa: E402
from mb_trainer.bridge.auto_bridge import AutoBridge  # noqa: E402
from mb_trainer.bridge.providers import GPTModelProvider, HybridModelProvider  # noqa: E402
from mb_trainer.bridge.recipe_table import PRECISION, WHOLE, in_full  # noqa: E402

FILE = Path(bases.__file__).with_name("recipes.json")
FAMILIES = (
    *("deepseek", "gemma", "glm", "gpt", "gpt_oss", "kimi", "llama", "moonlight", "nemotronh", "olmoe"),
    "qwen",
)
LATER = ("deepseek_v4", "gemma4", "glm5", "qwen35")
"""Files of models that mb_models does not have."""
PRECISIONS = ("bf16_mixed", "bf16_with_fp8_current_scaling_mixed", "bf16_with_mxfp8_mixed")
PATTERNS = ("hybrid_layer_pattern", "mtp_hybrid_override_pattern")
BASES = {"pretrain": bases._pretrain_common, "sft": bases._sft_common, "peft": bases._peft_common}
OPEN = AutoBridge.from_hf_pretrained

traced: dict[str, Any] = {}
"""Base and model of the recipe that runs."""
traced_cached: dict[str, bool] = {}
"""Model -> True if its config.json is in the cache of the hub."""


def trace_base(name: str) -> Any:
    """Return the base of recipes, which records its use."""

    def build() -> Any:
        traced["base"] = name
        config = BASES[name]()
        set_by(config, "base")
        return config

    return build


class _NotCached:
    """Model whose config.json is not in the cache: a section without sizes."""

    def __init__(self, name: str) -> None:
        self.kind = HybridModelProvider if "nemotron" in name.lower() else GPTModelProvider

    def to_megatron_provider(self, **_: Any) -> Any:
        return empty(self.kind)


def trace_model(name: str, **options: Any) -> Any:
    """Return the bridge of a model, whose sections are those of the hub."""
    traced["hf"] = str(name)
    try:
        bridge: Any = OPEN(name, **options)
    except HuggingFaceError:
        bridge = _NotCached(str(name))
    traced["cached"] = traced_cached[str(name)] = isinstance(bridge, AutoBridge)
    build = bridge.to_megatron_provider

    def to_megatron_provider(**values: Any) -> Any:
        traced["model"] = build(**values)
        set_by(section := build(**values), "hub")
        return section

    bridge.to_megatron_provider = to_megatron_provider
    return bridge


def moved(folder: Path, target: Path) -> Iterator[tuple[str, Path, Path]]:
    """Copy the files of recipes with their imports replaced; yield family, file and copy."""
    for family in FAMILIES:
        for file in sorted((folder / "recipes" / family).rglob("*.py")):
            if file.stem in LATER:
                continue
            copy = target / "moved" / file.relative_to(folder / "recipes")
            copy.parent.mkdir(parents=True, exist_ok=True)
            text = file.read_text()
            for name in FAMILIES:
                text = text.replace(f"megatron.bridge.recipes.{name}.", f"moved.{name}.")
            text = text.replace("megatron.bridge", "mb_trainer.bridge")
            copy.write_text("" if file.stem == "__init__" else text)
            yield family, file, copy


def plain(section: Any) -> Any:
    """Return a section as plain data without what equals its defaults."""
    return to_dict(section, defaults=False) if is_dataclass(section) else section


def settings(config: Any) -> dict[str, dict[str, Any]]:
    """Return what a recipe set: section -> field -> plain value.

    A section that is a value has the field "", a precision of a name the field "named".
    """
    base = BASES[traced.get("base", "pretrain")]()
    hub = traced.get("model")
    base.model = empty(type(config.model)) if hub is None else hub
    base.env_vars = dict(bases.COMMON_RECIPE_ENV_VARS)
    assigned = {name for name, (by, _) in given_record(config.model).items() if by not in ("hub", "base")}
    found: dict[str, dict[str, Any]] = {}
    for item in fields(config):
        name, now, old = item.name, getattr(config, item.name), getattr(base, item.name)
        if name == "env_vars":
            changed = {key: value for key, value in now.items() if old.get(key) != value}
            assert old.keys() <= now.keys()
        elif is_dataclass(now) and type(now) is type(old):
            # what a recipe assigns holds whatever the config.json of the model has
            of_hub = given_record(hub).keys() if traced.get("cached") else assigned
            keep = assigned & of_hub if name == "model" and hub is not None else set()
            values = to_dict(now)
            changed = {
                each.name: values[each.name]
                for each in fields(now)
                if each.init and (each.name in keep or getattr(now, each.name) != getattr(old, each.name))
            }
        elif now != old and item.init:
            names = [
                n for n in PRECISIONS if name == "mixed_precision" and now == get_mixed_precision_config(n)
            ]
            changed = {"named": names[0]} if names else plain(now) if is_dataclass(now) else {"": now}
        else:
            changed = {}
        if name == "model" and hub is not None:  # what follows from mtp_num_layers
            changed = {k: v for k, v in changed.items() if k not in PATTERNS}
        if name == "model" and "transformer" in changed:
            further = {
                k: v
                for k, v in changed["transformer"].items()
                if v is not None and v != megatron_fields().get(k)
            }
            changed = {k: v for k, v in changed.items() if k != "transformer"} | (
                {"transformer": further} if further else {}
            )
        if changed or (is_dataclass(now) and type(now) is not type(old) and now != old):
            found[name] = changed
    return found


def empty(kind: Any) -> Any:
    """Return a section of a class with its defaults."""
    return kind(hybrid_layer_pattern="") if issubclass(kind, HybridModelProvider) else kind()


def record(function: Any) -> tuple[dict[str, Any], Any]:
    """Return the entry of a recipe, and its configuration."""
    traced.clear()
    config = function()
    entry: dict[str, Any] = {"base": traced.get("base", "pretrain")}
    entry |= {"hf": traced["hf"]} if "hf" in traced else {"provider": type(config.model).__name__}
    found = settings(config)
    if inspect.signature(function).parameters:
        found.pop("peft", None)
        entry["adapters"] = {name: value for name, value in plain(config.peft).items() if name != "_target_"}
    return {**entry, "settings": found}, config


def difference(entry: dict[str, Any], parent: dict[str, Any], config: Any) -> dict[str, Any]:
    """Return an entry as the difference from another one."""
    found: dict[str, dict[str, Any]] = {}
    left: list[str] = []
    for section in {**entry["settings"], **parent["settings"]}:
        mine, its = entry["settings"].get(section, {}), parent["settings"].get(section, {})
        if section in WHOLE:
            if mine != its:
                found[section] = mine or ({"": config.mixed_precision} if section == PRECISION else {})
            continue
        changed = {name: value for name, value in mine.items() if name not in its or its[name] != value}
        whole = getattr(config, section)
        if section == "model" and "hf" in entry and not traced_cached[entry["hf"]]:
            left = sorted(its.keys() - mine.keys() - {*PATTERNS, "transformer"})
        for name in its.keys() - mine.keys() - {*left}:
            value = getattr(whole, name) if name and is_dataclass(whole) else whole
            changed[name] = plain(value)
        if not is_dataclass(whole) and not isinstance(whole, Mapping) and its:
            changed = {} if mine == its else {"": whole}
        if changed or (section in entry["settings"]) != (section in parent["settings"]):
            found[section] = dict(sorted(changed.items()))
    rest = {
        key: entry[key]
        for key in ("hf", "provider", "adapters")
        if key in entry and entry[key] != parent.get(key)
    }
    return {**rest, **({"left": left} if left else {}), "settings": found}


def length(value: Any) -> int:
    """Return the length of a value as JSON."""
    return len(json.dumps(value))


def written(entries: Mapping[str, tuple[dict[str, Any], Any]]) -> dict[str, dict[str, Any]]:
    """Return the entries of a family, each as the shortest difference from an earlier one."""
    found: dict[str, dict[str, Any]] = {}
    for name, (entry, config) in entries.items():
        options = [entry]
        for other, parent in in_full(found).items():
            same = type(entries[other][1].model) is type(config.model)
            if (
                same
                and parent["base"] == entry["base"]
                and ("hf" in parent) == ("hf" in entry)
                and ("adapters" in parent) == ("adapters" in entry)
            ):
                options.append({"of": other, **difference(entry, parent, config)})
        found[name] = min(options, key=length)
    return found


def aliases(folder: Path) -> dict[str, dict[str, str]]:
    """Return the further names of recipes: module -> name -> recipe."""
    found: dict[str, dict[str, str]] = {}
    for family in FAMILIES:
        for file in sorted((folder / "recipes" / family).glob("*.py")):
            for node in ast.parse(file.read_text()).body:
                if isinstance(node, ast.ImportFrom) and file.stem != "__init__":
                    module = found.setdefault(f"{family}.{file.stem}", {})
                    module |= {
                        each.asname or each.name: each.name
                        for each in node.names
                        if each.name.endswith("_config")
                    }
    return found


def lines(value: Mapping[str, Any]) -> str:
    """Return JSON with a line for each section of a recipe."""
    modules = []
    for module, entries in value["recipes"].items():
        texts = []
        for name, entry in entries.items():
            head = json.dumps({key: each for key, each in entry.items() if key != "settings"})[:-1]
            body = ",\n    ".join(
                f"{json.dumps(section)}: {json.dumps(each)}" for section, each in entry["settings"].items()
            )
            texts.append(
                f'  {json.dumps(name)}: {head}{", " if len(head) > 1 else ""}"settings": {{\n    {body}}}}}'
            )
        modules.append(f" {json.dumps(module)}: {{\n" + ",\n".join(texts) + "\n }")
    others = ",\n".join(
        f" {json.dumps(module)}: {json.dumps(names)}" for module, names in value["aliases"].items()
    )
    return '{"recipes": {\n' + ",\n".join(modules) + '\n},\n"aliases": {\n' + others + "\n}}\n"


def main(folder: Path) -> None:
    """Write the file, and print the recipes that cannot be read with the reason."""
    for name in BASES:
        setattr(bases, f"_{name}_common", trace_base(name))
    AutoBridge.from_hf_pretrained = staticmethod(trace_model)  # type: ignore[method-assign,assignment]
    families: dict[str, dict[str, tuple[dict[str, Any], Any]]] = {}
    where: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as target:
        sys.path.insert(0, target)
        for family, file, copy in [*moved(folder, Path(target))]:
            module = ".".join(copy.relative_to(target).with_suffix("").parts)
            for node in ast.parse(file.read_text()).body:
                if (
                    not isinstance(node, ast.FunctionDef)
                    or not node.name.endswith("_config")
                    or node.name[0] == "_"
                ):
                    continue
                try:
                    entry = record(getattr(import_module(module), node.name))
                except Exception as error:  # noqa: BLE001 - a report of all
                    print(f"{node.name}: {type(error).__name__}: {str(error).splitlines()[0][:150]}")
                    continue
                families.setdefault(family, {})[node.name] = entry
                where[node.name] = module.removeprefix("moved.")
    for name in sorted(name for name, cached in traced_cached.items() if not cached):
        print(
            f"{name}: its config.json is not in the cache of the hub, so its recipes are written without its sizes"
        )
    modules: dict[str, dict[str, Any]] = {}
    for entries in families.values():
        for name, entry in written(entries).items():
            modules.setdefault(where[name], {})[name] = entry
    known = {
        module: {name: of for name, of in names.items() if of in where}
        for module, names in aliases(folder).items()
    }
    text = lines({"recipes": modules, "aliases": {module: names for module, names in known.items() if names}})
    FILE.write_text(text.replace(f"{Path.cwd()}/", ""))  # folders of a run are below that of its start


if __name__ == "__main__":
    main(Path(sys.argv[1]))
