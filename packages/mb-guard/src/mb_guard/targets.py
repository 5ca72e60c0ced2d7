"""Functions of other libraries that are replaced, and what they are replaced by."""

import inspect
import sys
from collections.abc import Collection
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from mb_guard.fault import Patch


@dataclass(slots=True)
class Target:
    """One attribute of a module or class that is replaced by the patches of one or more faults.

    The attribute is set to the composed function itself: a call passes through no layer of this package.
    """

    owner: Any
    name: str
    original: Any
    patches: list[tuple[str, Patch]] = field(default_factory=list)
    """Id of the fault and patch, the innermost first."""

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

    def compose(self, disabled: Collection[str], *, just_imported: bool = False) -> None:
        """Set the attribute to the original with all patches but those of the disabled faults.

        Names that other modules have imported follow. Right after the import of the module, these are modules of its
        own package at most, so that the others are not searched.
        """
        previous = vars(self.owner)[self.name]
        function = getattr(self.original, "__func__", self.original)
        for fault, patch in self.patches:
            if fault not in disabled:
                function = patch.wrap(function)
        if isinstance(self.original, (staticmethod, classmethod)):
            function = type(self.original)(function)
        setattr(self.owner, self.name, function)
        if isinstance(self.owner, ModuleType) and previous is not None:
            package = self.owner.__name__.partition(".")[0] if just_imported else ""
            _replace_imported_names(previous, function, package=package)


def _replace_imported_names(previous: Any, function: Any, *, package: str) -> None:
    """Replace a function where `from module import name` has copied it, in all modules or those of a package."""
    for module_name, module in [*sys.modules.items()]:
        if module_name.startswith(package):
            for name, value in [*getattr(module, "__dict__", {}).items()]:
                if value is previous:
                    setattr(module, name, function)
