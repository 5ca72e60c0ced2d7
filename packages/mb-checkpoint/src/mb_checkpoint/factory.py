"""The manager that a section asks for: the default one, or a class of one's own by its dotted name."""

import inspect
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from mb_checkpoint.config import CheckpointConfig
from mb_checkpoint.context import CheckpointManager
from mb_checkpoint.errors import CheckpointConfigError
from mb_checkpoint.manager import DefaultCheckpointManager

FIELD = "checkpoint.custom_manager_class"


def create_checkpoint_manager(
    checkpoint_config: CheckpointConfig,
    *,
    allowed_modules: Sequence[str] | None = None,
    write_assets: Callable[[Path], None] | None = None,
) -> CheckpointManager:
    """Make the checkpoint manager of a run.

    Args:
        checkpoint_config: The section; `custom_manager_class` names a class, None the default one.
        allowed_modules: Packages and modules that the name may begin with; None: any. Importing a module runs it, so
            set this where the section comes from somebody else.
        write_assets: For the default manager.

    Raises:
        CheckpointConfigError: The name has no dot, its module is not allowed or cannot be imported, it has no such
            class, or what is there is no checkpoint manager; or the default manager refuses the section.
    """
    name = checkpoint_config.custom_manager_class
    if name is None:
        return DefaultCheckpointManager(checkpoint_config, write_assets=write_assets)
    found = _class(name, allowed_modules)(checkpoint_config)
    if not isinstance(found, CheckpointManager):
        lacks = [method for method in _METHODS if not hasattr(found, method)]
        raise CheckpointConfigError(
            f"{FIELD}: {name} lacks {', '.join(lacks)}. Add what CheckpointManager has."
        )
    try:
        inspect.signature(found.save).bind(object(), object())
    except TypeError as error:
        raise CheckpointConfigError(
            f"{FIELD}: {name}.save does not take a context and a callback manager ({error}). "
            "Define save(self, ctx, callback_manager=None)."
        ) from error
    return found


_METHODS = ("save", "load", "finalize_async_saves", "has_checkpoint")


def _class(name: str, allowed_modules: Sequence[str] | None) -> Any:
    module, dot, attribute = name.rpartition(".")
    if not dot:
        raise CheckpointConfigError(
            f"{FIELD}: {name!r} has no dot. Give module and class, such as mine.storage.Manager."
        )
    if allowed_modules is not None and not any(
        module == each or module.startswith(f"{each}.") for each in allowed_modules
    ):
        raise CheckpointConfigError(
            f"{FIELD}: {module} is not among the allowed modules {list(allowed_modules)}. Add it there."
        )
    try:
        found = import_module(module)
    except ImportError as error:
        raise CheckpointConfigError(
            f"{FIELD}: cannot import {module} ({error}). Install it, or correct the name."
        ) from error
    if not hasattr(found, attribute):
        raise CheckpointConfigError(f"{FIELD}: {module} has no {attribute}. Correct the name.")
    return getattr(found, attribute)
