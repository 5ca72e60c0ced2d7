"""Import hook that runs a callback after the import of a module."""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class AfterImport:
    """`sys.meta_path` finder that calls `callbacks[name](module)` right after module `name` is executed.

    The module is found and loaded by the other finders, and the callback runs before any importer can read a name from
    the module.
    """

    def __init__(self, callbacks: Mapping[str, Callable[[ModuleType], None]]) -> None:
        self.callbacks = dict(callbacks)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of the finders behind this one, with a loader that calls the callback.

        Finders before it may be hooks that called this one.
        """
        if name not in self.callbacks:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                _call_after_exec(spec.loader, callback=self.callbacks[name])
                return spec
        return None


def _call_after_exec(loader: Any, *, callback: Callable[[ModuleType], None]) -> None:
    execute = loader.exec_module

    def execute_then_call(module: ModuleType) -> None:
        execute(module)
        callback(module)

    loader.exec_module = execute_then_call
