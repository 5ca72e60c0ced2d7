"""Import of packages at their first use. Standard library only."""

import sys
from importlib.util import find_spec, module_from_spec
from threading import RLock
from types import ModuleType
from typing import Any

_lock = RLock()


class _DeferredModule(ModuleType):
    """Module whose code is executed when an attribute is read that it does not have yet.

    `importlib.util.LazyLoader` would execute it at the next import statement, which reads `__spec__`.
    """

    def __getattr__(self, name: str) -> Any:
        with _lock:
            if (
                type(self) is _DeferredModule
                and self.__spec__ is not None
                and self.__spec__.loader is not None
            ):
                self.__class__ = ModuleType  # type: ignore[assignment]  # from now on an ordinary module
                self.__spec__.loader.exec_module(self)
        return getattr(self, name)


def defer_import(name: str) -> bool:
    """Let an import of a package return a module that is executed when its first attribute is read.

    Megatron Core imports wandb, although only a program that passes it to Megatron's timers uses it.

    Returns:
        Whether the package is deferred. It is not if it is already imported or not installed.
    """
    if name in sys.modules:
        return False
    spec = find_spec(name)
    if spec is None or spec.loader is None:
        return False
    module = module_from_spec(spec)
    module.__class__ = _DeferredModule
    sys.modules[name] = module
    return True
