"""Import hook that calls functions before and after the code of a module runs."""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class ImportHook:
    """`sys.meta_path` finder that calls `before[name]()` and `after[name](module)` around the code of a module.

    The module is found and loaded by the other finders. A function after it runs before any importer can read a name
    from the module. Finding a module, as `importlib.util.find_spec` does, calls nothing.
    """

    def __init__(
        self,
        *,
        before: Mapping[str, Callable[[], None]] | None = None,
        after: Mapping[str, Callable[[ModuleType], None]] | None = None,
    ) -> None:
        self.before, self.after = dict(before or {}), dict(after or {})

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of the finders behind this one, with a loader that calls the functions."""
        if name not in self.before and name not in self.after:
            return None
        # Finders before this one may be hooks that called it, and would call it again.
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                _wrap(spec.loader, before=self.before.get(name), after=self.after.get(name))
                return spec
        return None


def _wrap(
    loader: Any, *, before: Callable[[], None] | None, after: Callable[[ModuleType], None] | None
) -> None:
    create, execute = loader.create_module, loader.exec_module

    def call_then_create(spec: ModuleSpec) -> Any:
        if before is not None:
            before()
        return create(spec)

    def execute_then_call(module: ModuleType) -> None:
        execute(module)
        if after is not None:
            after(module)

    # `before` is called ahead of exec_module, at which sys.modules has the module already: a function that checks
    # whether the module is imported would find it.
    loader.create_module, loader.exec_module = call_then_create, execute_then_call
