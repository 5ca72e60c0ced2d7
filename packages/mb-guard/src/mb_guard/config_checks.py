"""Checks of Megatron's configuration objects, when they are made, against the faults that settings decide."""

import functools
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from mb_guard.errors import KnownFaultError
from mb_guard.fault import Fault, Settings

CONFIG_CLASSES: Mapping[str, str] = {
    "megatron.core.transformer.transformer_config": "TransformerConfig",
    "megatron.core.datasets.gpt_dataset": "GPTDatasetConfig",
    "megatron.core.distributed.distributed_data_parallel_config": "DistributedDataParallelConfig",
    "megatron.core.optimizer.optimizer_config": "OptimizerConfig",
}
"""Classes whose objects hold the settings of a run, by module."""


class ConfigCheck:
    """Check of the latest object of each configuration class, made whenever one is created; no step has a cost."""

    def __init__(self, faults: Sequence[Fault], *, refuse: bool, report: Callable[[str], None]) -> None:
        self.faults = [fault for fault in faults if fault.met is not None]
        self.refuse = refuse
        self.report = report
        self.latest: dict[str, Mapping[str, Any]] = {}
        self.reported: set[str] = set()

    def watch(self, module: ModuleType) -> None:
        """Check each object of the configuration class of a module right after its `__post_init__`."""
        cls = getattr(module, CONFIG_CLASSES[module.__name__])
        complete = getattr(cls, "__post_init__", None)

        def __post_init__(config: Any) -> None:
            if complete is not None:
                complete(config)
            self.check(cls.__name__, vars(config))

        cls.__post_init__ = functools.wraps(complete)(__post_init__) if complete else __post_init__

    def check(self, name: str, values: Mapping[str, Any]) -> None:
        """Report each fault that the settings meet, once.

        Raises:
            KnownFaultError: they meet a fault that is refused.
        """
        self.latest[name] = dict(values)
        settings = Settings({key: value for known in self.latest.values() for key, value in known.items()})
        for fault in self.faults:
            if fault.met is None or fault.id in self.reported or not fault.met(settings):
                continue
            message = f"{fault.id}: {fault.summary} {fault.advice}".strip()
            if self.refuse and fault.action == "refuse":
                raise KnownFaultError(f"{message} MB_GUARD=-{fault.id} runs it all the same.")
            self.reported.add(fault.id)
            self.report(f"mb_guard: {message}")
