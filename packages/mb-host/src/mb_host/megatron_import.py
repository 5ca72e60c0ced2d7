"""`install_before_megatron`: a call of `install` at the import of Megatron Core. Standard library only."""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_MEGATRON = "megatron.core"


class _InstallFirst:
    """`sys.meta_path` finder that calls `install` before the code of `megatron.core` runs.

    The module is found by the other finders. Finding it, as `importlib.util.find_spec` does, does not call `install`.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of the finders behind this one, with a loader that calls `install`."""
        if name != _MEGATRON:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                _install_before_load(spec.loader)
                return spec
        return None


def _install_before_load(loader: Any) -> None:
    create = loader.create_module

    def install_then_create(spec: ModuleSpec) -> ModuleType | None:
        from mb_host.installation import install  # noqa: PLC0415 - imports torch

        install()
        module: ModuleType | None = create(spec)
        return module

    # not exec_module: at its call sys.modules has the module already, and `install` would find it there
    loader.create_module = install_then_create


def install_before_megatron() -> None:
    """Call `mb_host.install()` when this process imports `megatron.core`, before its code runs.

    For a program that loads modules of its users, which import Megatron Core at their top. Until that import nothing is
    imported, and torch is not changed. Without effect if `megatron.core` is already imported, and at a second call.
    """
    if _MEGATRON not in sys.modules and not any(isinstance(each, _InstallFirst) for each in sys.meta_path):
        sys.meta_path.insert(0, _InstallFirst())
