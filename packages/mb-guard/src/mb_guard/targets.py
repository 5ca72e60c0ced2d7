"""Functions of other libraries that are replaced, and what they are replaced by."""

import inspect
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from mb_guard.fault import Patch


@dataclass(slots=True)
class Target:
    """One attribute of a module or class that is replaced by the patches of one or more faults.

    The attribute is set to the composed function itself, so that a disabled patch costs a call nothing.
    """

    owner: Any
    name: str
    original: Any
    patches: list[tuple[str, Patch]] = field(default_factory=list)
    """Id of the fault and patch, the innermost first."""
    copies: set[tuple[ModuleType, str]] = field(default_factory=set)
    """Where `from module import name` has copied the attribute of a module: filled by `find_copies`."""

    @classmethod
    def find(cls, module: ModuleType, path: str) -> "Target | None":
        """Return the attribute at a dotted path of a module; None if it does not exist or is inherited."""
        *parents, name = path.split(".")
        owner: Any = module
        for parent in parents:
            owner = getattr(owner, parent, None)
        if owner is None or name not in vars(owner):
            return None
        return cls(owner, name, vars(owner)[name])

    def is_from(self, file: str | None) -> bool:
        """Return whether the original is defined in a file; False if another library has replaced it."""
        function = inspect.unwrap(getattr(self.original, "__func__", self.original))
        code = getattr(function, "__code__", None)
        return code is None or code.co_filename == file

    def compose(self, disabled: Collection[str]) -> None:
        """Set the attribute and its copies to the original with all patches but those of the disabled faults."""
        previous = self.value()
        function = getattr(self.original, "__func__", self.original)
        for fault, patch in self.patches:
            if fault not in disabled:
                function = patch.wrap(function)
        if isinstance(self.original, (staticmethod, classmethod)):
            function = type(self.original)(function)
        setattr(self.owner, self.name, function)
        for module, name in self.copies:
            if vars(module).get(name) is previous:
                setattr(module, name, function)

    def value(self) -> Any:
        """Return what the attribute is set to now."""
        return vars(self.owner)[self.name]


def find_copies(targets: Iterable[Target], modules: Iterable[ModuleType]) -> None:
    """Find where modules hold a target under a name of their own, in one pass over their names."""
    values = {
        id(value): target
        for target in targets
        if isinstance(target.owner, ModuleType) and (value := target.value()) is not None
    }
    if values:
        for module in modules:
            for name, value in [*vars(module).items()]:
                if (target := values.get(id(value))) is not None:
                    target.copies.add((module, name))
