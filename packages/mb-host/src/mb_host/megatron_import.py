"""`install_before_megatron`: a call of `install` at the import of Megatron Core. Standard library only."""

import sys

from mb_schema.import_hook import ImportHook

_MEGATRON = "megatron.core"


def install_before_megatron() -> None:
    """Call `mb_host.install()` when this process imports `megatron.core`, before its code runs.

    For a program that loads modules of its users, which import Megatron Core at their top. Until that import nothing is
    imported, and torch is not changed. Without effect if `megatron.core` is already imported, and at a second call.
    """
    is_hooked = any(
        isinstance(hook, ImportHook) and _install in hook.before.values() for hook in sys.meta_path
    )
    if _MEGATRON not in sys.modules and not is_hooked:
        sys.meta_path.insert(0, ImportHook(before={_MEGATRON: _install}))


def _install() -> None:
    from mb_host.installation import install  # noqa: PLC0415 - imports torch

    install()
