"""`Settings`: the settings of a run under Megatron's field names, from a configuration object or a mapping."""

from collections.abc import Iterator, Mapping
from typing import Any


class Settings(Mapping[str, Any]):
    """Settings of a run by Megatron's field name; a name that is not set is None.

    >>> settings = Settings({"num_moe_experts": 4})
    >>> settings.num_moe_experts, settings.mtp_num_layers
    (4, None)
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._values.get(name)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)
