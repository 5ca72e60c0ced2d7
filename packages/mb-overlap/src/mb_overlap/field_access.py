"""Access to fields of sections of any kind: dataclasses, namespaces, mappings.

Megatron-LM's command line has other names for a few fields of Megatron Core's configuration classes. A section that
only has the other name is read and written under that name.
"""

from argparse import Namespace
from collections.abc import Iterator, Mapping, MutableMapping

OTHER_NAMES: Mapping[str, str] = {
    "bucket_size": "ddp_bucket_size",
    "num_buckets": "ddp_num_buckets",
    "num_moe_experts": "num_experts",
    "cuda_graph_modules": "cuda_graph_scope",
}
"""Field of Megatron Core to its name on Megatron-LM's command line or in older releases."""

PATHS_ON_THE_COMMAND_LINE = frozenset({"tp_comm_overlap_cfg"})
"""Fields that hold a path on Megatron-LM's command line and settings in a configuration class."""


def field_name(section: object, name: str) -> str | None:
    """Return the name under which a section has this field; None if it has no such field."""
    for candidate in (name, OTHER_NAMES.get(name, name)):
        is_field = candidate in section if isinstance(section, Mapping) else hasattr(section, candidate)
        if is_field:
            return candidate
    return None


def has_field(section: object, name: str) -> bool:
    """Return whether this field can be written to the section."""
    if isinstance(section, Namespace) and name in PATHS_ON_THE_COMMAND_LINE:
        return False
    return field_name(section, name) is not None


def read_field(section: object, name: str) -> object:
    """Return the value of a field; None if the section has no such field."""
    field = field_name(section, name)
    if field is None:
        return None
    return section[field] if isinstance(section, Mapping) else getattr(section, field)


def write_field(section: object, name: str, value: object) -> None:
    """Set a field that the section has."""
    field = field_name(section, name) or name
    if isinstance(section, MutableMapping):
        section[field] = value
    else:
        setattr(section, field, value)


class SectionView(Mapping[str, object]):
    """Section of any kind as a mapping from Megatron Core's field names, with values that replace its own.

    It is for lookups. Iteration yields the replaced values only, because a section of any kind cannot list its fields.
    """

    def __init__(self, section: object, replaced: Mapping[str, object] | None = None) -> None:
        self._section = section
        self._replaced = dict(replaced or {})

    def __getitem__(self, name: str) -> object:
        if name not in self:
            raise KeyError(name)
        return self._replaced.get(name, read_field(self._section, name))

    def __contains__(self, name: object) -> bool:
        return field_name(self._section, str(name)) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._replaced)

    def __len__(self) -> int:
        return len(self._replaced)
