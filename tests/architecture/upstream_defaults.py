"""Defaults of Megatron-Bridge's configuration classes, read from its source without importing it.

Run as `python tests/architecture/upstream_defaults.py DIR [DIR ...]`, with the unpacked wheel of Megatron-Bridge first
and then the site-packages with the Megatron Core that it was made for, to write `upstream_defaults.json` again.
"""

import ast
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_suffix(".json")

SOURCES = {
    "megatron.bridge.training.config": (
        "DistributedDataParallelConfig",
        "OptimizerConfig",
        "DistributedInitConfig",
        "RerunStateMachineConfig",
        "OptimizerConfigOverrideProvider",
        "GPTDatasetConfig",
        "GPTFIMDatasetConfig",
        "MockGPTDatasetConfig",
        "SchedulerConfig",
        "TrainingConfig",
        "CheckpointConfig",
        "LoggerConfig",
        "ProfilingConfig",
        "TensorInspectConfig",
        "FaultToleranceConfig",
        "StragglerDetectionConfig",
        "NVRxStragglerDetectionConfig",
        "InProcessRestartConfig",
        "ConfigContainer",
        "ValidationConfig",
        "RNGConfig",
        "TokenizerConfig",
    ),
    "megatron.bridge.training.comm_overlap": (
        "CommOverlapConfig",
        "TransformerLayerTPOverlapCfg",
        "PipelineOverlapCfg",
        "RingExchangeOverlapCfg",
        "BulkOverlapCfg",
        "TPOverlapCfg",
    ),
    "megatron.bridge.training.mixed_precision": ("MixedPrecisionConfig",),
    "megatron.bridge.data.base": ("DataloaderConfig",),
    "megatron.bridge.data.builders.gpt_sft": ("FinetuningDatasetConfig",),
    "megatron.bridge.data.packing.config": ("PackedSequenceSpecs",),
    "megatron.bridge.peft.lora": ("LoRA",),
    "megatron.bridge.peft.canonical_lora": ("CanonicalLoRA",),
    "megatron.bridge.peft.dora": ("DoRA",),
    "megatron.bridge.models.gpt_provider": ("GPTModelProvider",),
    "megatron.bridge.models.t5_provider": ("T5ModelProvider",),
    "megatron.bridge.models.hybrid.hybrid_provider": ("HybridModelProvider",),
}
"""Module -> classes whose defaults are recorded."""


@dataclass(frozen=True)
class Module:
    """One source file."""

    name: str
    path: Path

    @cached_property
    def tree(self) -> ast.Module:
        """Its syntax tree."""
        return ast.parse(self.path.read_text(encoding="utf-8"))

    @cached_property
    def imported(self) -> dict[str, tuple[str, str]]:
        """Local name -> module and name that it was imported from."""
        found = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                package = self.name.split(".") if self.path.stem == "__init__" else self.name.split(".")[:-1]
                above = package[: len(package) - node.level + 1] if node.level else []
                module = ".".join([*above, node.module])
                for alias in node.names:
                    found[alias.asname or alias.name] = (module, alias.name)
        return found


class Sources:
    """Modules below some folders."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self._roots = roots
        self._modules: dict[str, Module | None] = {}

    def module(self, name: str) -> Module | None:
        """Return a module, None where no folder has it."""
        if name not in self._modules:
            stem = name.replace(".", "/")
            paths = [root / each for root in self._roots for each in (f"{stem}.py", f"{stem}/__init__.py")]
            path = next((path for path in paths if path.is_file()), None)
            self._modules[name] = None if path is None else Module(name, path)
        return self._modules[name]

    def find(self, module: str, name: str) -> tuple[Module, ast.ClassDef] | None:
        """Return a class and the module that defines it, through imports; None where it is in no folder."""
        source = self.module(module)
        if source is None:
            return None
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ClassDef) and node.name == name:
                return source, node
        return self.find(*source.imported[name]) if name in source.imported else None

    def defaults(self, module: str, name: str) -> dict[str, Any]:
        """Return field -> default of a dataclass, with its bases'; fields that the constructor lacks are left out."""
        found = self.find(module, name)
        if found is None:
            return {}
        source, node = found
        values: dict[str, Any] = {}
        for base in reversed(node.bases):
            text = ast.unparse(base).split("[")[0]
            values |= self.defaults(source.name, text)
        return values | dict(fields_of(node))


def fields_of(node: ast.ClassDef) -> Iterator[tuple[str, Any]]:
    """Yield the fields of one class with their defaults as plain data."""
    for line in node.body:
        if not isinstance(line, ast.AnnAssign) or not isinstance(line.target, ast.Name):
            continue
        kind, name = ast.unparse(line.annotation), line.target.id
        if "ClassVar" in kind or name.startswith("_"):
            continue
        yield name, default_of(line.value)


def default_of(value: ast.expr | None) -> Any:
    """Return a default as plain data; "(required)" where there is none."""
    if value is None:
        return "(required)"
    if isinstance(value, ast.Call) and ast.unparse(value.func).split(".")[-1] in ("field", "_field"):
        given = {word.arg: word.value for word in value.keywords}
        if "default" in given:
            return plain(given["default"])
        if "default_factory" not in given:
            return "(required)"
        factory = given["default_factory"]
        if isinstance(factory, ast.Lambda):
            return plain(factory.body)
        return {"list": [], "dict": {}, "set": []}.get(ast.unparse(factory), f"{ast.unparse(factory)}()")
    return plain(value)


def plain(node: ast.expr) -> Any:
    """Return an expression's value if it is a constant one, else its text, of a dotted name the last part."""
    names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    if isinstance(node, ast.Attribute):
        return ast.unparse(node).rsplit(".", 1)[-1]
    if names - {"float"} or any(isinstance(each, ast.Attribute | ast.Lambda) for each in ast.walk(node)):
        return ast.unparse(node)
    value = eval(compile(ast.Expression(node), "<default>", "eval"), {"__builtins__": {}, "float": float})
    return list(value) if isinstance(value, tuple | set) else value


def table(roots: Sequence[Path]) -> dict[str, Mapping[str, Any]]:
    """Return class -> field -> default."""
    sources = Sources(roots)
    return {name: sources.defaults(module, name) for module, names in SOURCES.items() for name in names}


if __name__ == "__main__":
    found = table([Path(each) for each in sys.argv[1:]])
    TABLE.write_text(
        json.dumps({"megatron-bridge": "0.6.2", "classes": found}, indent=1, sort_keys=True) + "\n"
    )
    print(f"{TABLE}: {len(found)} classes, {sum(map(len, found.values()))} fields")
    print("without fields:", ", ".join(name for name, values in found.items() if not values) or "none")
